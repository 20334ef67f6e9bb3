"""Read single parts of a checkpoint file."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.saved_options import saved_options, warn_without_hash
from highrank_plugins.common.score import metric_of, sign, wrong_direction
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


def configuration_of(state: Mapping[str, Any]) -> Any:
    """Return all blocks of a loaded checkpoint's options, also of fairseq 0.9 and 0.10."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return state.get("cfg") or convert_namespace_to_omegaconf(state["args"])


def mapped_model(path: Path) -> "dict[str, Tensor]":
    """Return a checkpoint's weights, mapped into memory as they are read; checksums are compared.

    Raises:
        ValueError: the file is damaged or has no weights; says so.
    """
    check_archive(path)
    model: dict[str, Tensor] = look_up(path, "model")
    warn_without_hash(str(path), look_up(path))
    return model


def best_checkpoint(directories: list[Path]) -> Path:
    """Return `checkpoint_best.pt` of the training run with the best validation score.

    A finetuning is chosen only if it improved on its first training run.

    Raises:
        ValueError: see `look_up`; or the runs were validated by different metrics, or a run of an
            older version kept its worst checkpoint as the best.
        FileNotFoundError: a directory without that file.
    """
    found = [directory / "checkpoint_best.pt" for directory in directories]
    scores = {path: float(look_up(path, "extra_state", "best")) for path in found}
    options = {path: saved_options(look_up(path), "checkpoint") for path in found}
    better = same_sign(options)
    for path, of in options.items():
        if wrong := wrong_direction(of):
            raise ValueError(
                f"{path} is the worst checkpoint of its run, not the best: {wrong[1]}. Take "
                f"`highrank model average {path.parent} --best 1` instead"
            )
    return max(found, key=lambda path: better * scores[path])


def same_sign(options: Mapping[Path, Mapping[str, Any]]) -> int:
    """Return the common `sign` of checkpoints, from the options of their training runs.

    Raises:
        ValueError: their scores are of different metrics; names two files.
    """
    first, *others = options
    for path in others:
        ours, theirs = metric_of(options[first]), metric_of(options[path])
        if (ours, sign(options[first])) != (theirs, sign(options[path])):
            raise ValueError(
                f"{first} was validated by {ours}, and {path} by {theirs}: these scores cannot be "
                "compared; name checkpoints of one --best-checkpoint-metric"
            )
    return sign(options[first])
