"""Numbers that a checkpoint holds beside its weights, which are not read."""

import pickle
from pathlib import Path
from typing import Any


def look_up(path: Path, *keys: str | int) -> Any:
    """The value at `keys` of fairseq's checkpoint. The file is mapped, whatever its size.

    Raises:
        ValueError: the file is damaged or has no such value; says so.
    """
    import torch

    import highrank_plugins

    highrank_plugins.register()  # admits the plain classes that fairseq stores
    try:
        value = torch.load(path, "cpu", weights_only=True, mmap=True)
        for key in keys:
            value = value[key]
        return value
    except (RuntimeError, EOFError, pickle.UnpicklingError, LookupError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: damaged, or no checkpoint of a training ({reason}); move it elsewhere"
        ) from None


def best_checkpoint(directories: list[Path]) -> Path:
    """`checkpoint_best.pt` of the training with the lowest validation loss.

    Of a training and its finetuning this is the latter only if it has improved the former.

    Raises:
        ValueError: see `look_up`.
        FileNotFoundError: a directory without that file.
    """
    found = [directory / "checkpoint_best.pt" for directory in directories]
    return min(found, key=lambda path: float(look_up(path, "extra_state", "best")))
