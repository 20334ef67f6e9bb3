"""Read single parts of a checkpoint file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.saved_options import saved_options, warn_without_hash
from highrank_plugins.common.score import criterion, reversed_flag
from highrank_plugins.common.torch_archive import UNREADABLE, check_archive, load_mapped

if TYPE_CHECKING:
    from torch import Tensor


def look_up(path: Path, *keys: str | int) -> Any:
    """Return the value at `keys` of fairseq's checkpoint. The file is mapped, whatever its size."""
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


def configuration_of(state: Mapping[str, Any]) -> Any:
    """Return all blocks of a loaded checkpoint's options, also of fairseq 0.9 and 0.10."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return state.get("cfg") or convert_namespace_to_omegaconf(state["args"])


def mapped_model(path: Path) -> "dict[str, Tensor]":
    """Return a checkpoint's weights, mapped into memory as they are read; compare checksums."""
    check_archive(path)
    model: dict[str, Tensor] = look_up(path, "model")
    warn_without_hash(str(path), look_up(path))
    return model


def best_checkpoint(directories: list[Path]) -> Path:
    """Return `checkpoint_best.pt` of the training run with the best validation score.

    A finetuning is chosen only if it improved on its first training run.
    """
    found = [directory / "checkpoint_best.pt" for directory in directories]
    scores = {path: float(look_up(path, "extra_state", "best")) for path in found}
    sign = common_sign(found)
    for path in found:
        if wrong := reversed_flag(saved_options(look_up(path), "checkpoint")):
            raise ValueError(
                f"{path} is the worst checkpoint of its run, not the best ({wrong[1]}). Take the "
                f"file of `highrank model average {path.parent} --best 1`"
            )
    return max(found, key=lambda path: sign * scores[path])


def common_sign(paths: list[Path]) -> int:
    """Return 1 if the highest validation score of the checkpoints is best, −1 if the lowest."""
    kinds = {criterion(saved_options(look_up(path), "checkpoint")): path for path in paths}
    if len(kinds) > 1:
        (one, here), (other, there), *_ = kinds.items()
        raise ValueError(
            f"{here} was validated by {one[0]}, and {there} by {other[0]}: these scores cannot be "
            "compared; name checkpoints of one --best-checkpoint-metric"
        )
    return next(iter(kinds))[1]
