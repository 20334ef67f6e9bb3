"""Read single parts of a checkpoint file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.torch_archive import UNREADABLE, check_archive, load_mapped

if TYPE_CHECKING:
    from torch import Tensor


def look_up(path: Path, *keys: str | int) -> Any:
    """Return the value at `keys` of fairseq's checkpoint. The file is mapped, whatever its size.

    Raises:
        ValueError: the file is damaged or lacks the value; says so.
    """
    import highrank_plugins

    highrank_plugins.register()  # allows the plain classes that fairseq stores
    check_archive(path, whole=False)  # its messages are those to show
    try:
        value = load_mapped(path)
        for key in keys:
            value = value[key]
        return value
    except UNREADABLE as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{path}: damaged, or not a training checkpoint ({reason}); move it elsewhere"
        ) from None


def mapped_model(path: Path) -> "dict[str, Tensor]":
    """Return a checkpoint's weights, mapped into memory as they are read; checksums are compared.

    Raises:
        ValueError: the file is damaged or has no weights; says so.
    """
    check_archive(path)
    model: dict[str, Tensor] = look_up(path, "model")
    return model


def best_checkpoint(directories: list[Path]) -> Path:
    """Return `checkpoint_best.pt` of the training run with the lowest validation loss.

    A finetuning is chosen only if it improved on its first training run.

    Raises:
        ValueError: see `look_up`.
        FileNotFoundError: a directory without that file.
    """
    found = [directory / "checkpoint_best.pt" for directory in directories]
    return min(found, key=lambda path: float(look_up(path, "extra_state", "best")))
