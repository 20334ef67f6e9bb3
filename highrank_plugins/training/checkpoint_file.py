"""Read single parts of a checkpoint file."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.checkpoint_file import (
    UNREADABLE,
    check_archive,
    load_mapped,
    saved_options,
    warn_without_hash,
)
from highrank_plugins.common.score import criterion, direction, reversed_flag

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
        if not math.isfinite(scores[path]):
            raise ValueError(f"{path}: its best score is not a finite number; leave this run out")
        if wrong := reversed_flag(saved_options(look_up(path), "checkpoint")):
            raise ValueError(
                f"{path} is the worst checkpoint of its run, not the best ({wrong[1]}). Take the "
                f"file of `highrank model average {path.parent} --best 1`"
            )
    return max(found, key=lambda path: sign * scores[path])


def common_sign(paths: list[Path]) -> int:
    """Return 1 if the highest validation score of the checkpoints is best, −1 if the lowest."""
    first: dict[str, tuple[Path, str]] = {}
    for path in paths:
        for what, value in _scored_by(path).items():
            there, other = first.setdefault(what, (path, value))
            if value != other:
                raise ValueError(
                    f"{there} was validated by {other}, and {path} by {value}: these scores "
                    f"cannot be compared; name checkpoints of one {what}"
                )
    return criterion(saved_options(look_up(paths[0]), "checkpoint"))[1]


def _scored_by(path: Path) -> dict[str, str]:
    """Return what a validation score depends on, as far as the checkpoint says."""
    state = look_up(path)
    metric, sign = criterion(saved_options(state, "checkpoint"))
    loss, text = saved_options(state, "criterion"), saved_options(state, "dataset")
    found = {
        "--best-checkpoint-metric": metric + ("" if direction(metric) else f" ({sign:+d})"),
        "--valid-subset": text.get("valid_subset"),
        "dictionary": (state.get("task_state") or {}).get("dictionaries"),
    }
    if metric == "loss":  # others, such as nll_loss and bleu, are the same under each criterion
        found["--criterion"] = loss.get("criterion", loss.get("_name"))
        found["--label-smoothing"] = loss.get("label_smoothing")
    return {name: str(value) for name, value in found.items() if value not in (None, {})}
