"""Choose checkpoints of a run and average them; this usually translates better than each."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.checkpoint_file import saved_options
from highrank_plugins.common.names import flag
from highrank_plugins.training.checkpoint_file import (
    common_sign,
    configuration_of,
    look_up,
    mapped_model,
)

if TYPE_CHECKING:
    from torch import Tensor

CheckpointState = dict[str, Any]
# names of checkpoints: of an epoch, of an update, and the newest
_IN_ORDER = re.compile(r"checkpoint(?:\d+|_\d+_(\d+)|_last)\.pt")
# those, and the best checkpoints, also by --keep-best-checkpoints
_ANY = re.compile(r"checkpoint(?:\d+|_\d+_(\d+)|_last|_best|\.best_.+)\.pt")


@dataclass(frozen=True)
class Updates:
    """Hold the first and the last number of updates, both included."""

    first: int = 0
    last: float = math.inf

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last

    def __str__(self) -> str:
        if self == Updates():
            return ""
        return f" from update {self.first}" + (f" to {self.last}" if self.last < math.inf else "")


def last_checkpoints(
    directory: Path, count: int | None, updates: Updates | None = None
) -> list[Path]:
    """Return the `count` checkpoints of `directory` with the most updates, in training order.

    These are `checkpoint<epoch>.pt`, `checkpoint_<epoch>_<updates>.pt` and `checkpoint_last.pt`.
    Several with the same number of updates, which are copies, count once. A `count` of None means
    all.
    """
    updates = updates or Updates()
    found = _found(directory, _IN_ORDER, updates)
    count = _check_enough(directory, len(found), count, f"of different updates{updates}")
    return [found[number] for number in sorted(found)[len(found) - count :]]


def best_checkpoints(directory: Path, count: int, updates: Updates | None = None) -> list[Path]:
    """Return the `count` checkpoints with the best validation score, in training order.

    The score is the one that fairseq stored with each (`--best-checkpoint-metric`, the loss by
    default); checkpoints without a finite score do not count, nor do copies.
    """
    updates = updates or Updates()
    found = _found(directory, _ANY, updates)
    scores = {
        number: float(score)
        for number, path in found.items()
        if (score := look_up(path, "extra_state").get("val_loss")) is not None
        and math.isfinite(score)
    }
    _check_enough(directory, len(scores), count, f"with a validation score{updates}")
    sign = common_sign([found[number] for number in scores])
    best = sorted(scores, key=lambda number: (-sign * scores[number], -number))[:count]
    return [found[number] for number in sorted(best)]


def _found(directory: Path, pattern: re.Pattern[str], updates: Updates) -> dict[int, Path]:
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such folder")
    found: dict[int, Path] = {}
    for path in sorted(directory.glob("*.pt")):  # sorts checkpoint_last.pt after numbered ones
        match = pattern.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]) if match[1] else _updates(path), path)
    return {number: path for number, path in found.items() if number in updates}


def _updates(path: Path) -> int:
    return int(look_up(path, "optimizer_history", -1, "num_updates"))


def _check_enough(directory: Path, found: int, count: int | None, which: str) -> int:
    wanted = max(found, 1) if count is None else count
    if found < wanted:
        raise ValueError(
            f"{directory}: found {found} of {wanted} checkpoints {which} to average. Train "
            "longer, save more often (--save-interval-updates), keep more (--keep-last-epochs), "
            "average fewer (--last, --best), or widen the range (--from-update, --to-update)"
        )
    return wanted


def average_checkpoints(paths: list[Path], output: Path) -> None:
    """Write the newest of `paths` (the last) with averaged weights, for inference and warm starts.

    Sums are float64, so the average of equal weights is these weights. Integer tensors come from
    the newest checkpoint. Tied weights stay tied. The state of the optimizer is left out. Memory
    holds the sum and one checkpoint at a time. All are read safely, and damaged files are refused.
    """
    import highrank_plugins

    highrank_plugins.register()
    from fairseq.checkpoint_utils import torch_persistent_save

    output.parent.mkdir(parents=True, exist_ok=True)  # raises before the work, which takes minutes
    state = load_without_weights(paths[-1])
    for path in paths[:-1]:
        _check_same_function(paths[-1], path)
    total: dict[str, Tensor] = {}
    for path in paths:
        model = mapped_model(path)
        _check_same(total, model, path)
        for name, value in model.items():
            total[name] = _add(total.get(name), value)
    state["model"] = _tie(_divide(total, model, len(paths)), model)
    torch_persistent_save(state, str(output))


def load_without_weights(path: Path) -> CheckpointState:
    """Load a checkpoint without weights and optimizer state, as plain containers.

    It is read as fairseq reads it, which refuses files that are damaged or could run code.
    """
    import highrank_plugins

    highrank_plugins.register()
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu
    from omegaconf import OmegaConf

    try:
        state: CheckpointState = load_checkpoint_to_cpu(str(path))
    except KeyError as error:  # fairseq upgrades old formats
        raise ValueError(f"{path} is not a training checkpoint: it lacks {error}") from None
    state.pop("last_optimizer_state", None)
    del state["model"]
    # stored as plain containers, as fairseq's trainer does
    options = configuration_of(state)
    state["cfg"] = OmegaConf.to_container(options, resolve=True, enum_to_str=True)
    return state | {"args": None}


# options of the output layer that matter in training alone
_TRAINING_ONLY = ("loss", "monitor", "dropout", "noise", "lr")


def _check_same_function(newest: Path, path: Path) -> None:
    """Compare output layers and dictionaries."""
    ours, theirs = _function_of(newest), _function_of(path)
    for name in sorted(ours.keys() & theirs.keys()):
        if ours[name] != theirs[name]:
            what = (
                "the dictionaries differ"
                if name == "dictionaries"
                else (f"{flag(name)} is {theirs[name]}, but {ours[name]} there")
            )
            raise ValueError(
                f"{path} is of another training run than {newest}: {what}; average the "
                "checkpoints of one run"
            )


def _function_of(path: Path) -> dict[str, Any]:
    """Return the options of the output layer, and the hashes of the dictionaries, where saved."""
    state = look_up(path)
    found = {
        name: value
        for name, value in saved_options(state, "model").items()
        if name.split("_")[0] == "head" and not any(word in name for word in _TRAINING_ONLY)
    }
    hashes = (state.get("task_state") or {}).get("dictionaries")
    return found | ({"dictionaries": hashes} if hashes else {})


def _check_same(total: dict[str, "Tensor"], model: dict[str, "Tensor"], path: Path) -> None:
    if not total:
        return
    names = total.keys() | model.keys()
    different = [n for n in names if _shape(total.get(n)) != _shape(model.get(n))]
    if different:
        raise ValueError(
            f"{path}: {min(different)} is missing, new, or has another shape than in the "
            "other checkpoints: they do not belong to one training run"
        )


def _shape(value: "Tensor | None") -> object:
    return None if value is None else value.shape


def _add(total: "Tensor | None", value: "Tensor") -> "Tensor":
    import torch

    if not value.is_floating_point():
        return value
    return value.to(torch.float64, copy=True) if total is None else total.add_(value)


def _divide(
    total: dict[str, "Tensor"], newest: dict[str, "Tensor"], count: int
) -> dict[str, "Tensor"]:
    """Return the means, in the types of `newest`; `total` is used up."""
    means = {}
    for name, like in newest.items():
        value = total.pop(name)
        means[name] = (value / count).to(like.dtype) if value.is_floating_point() else value.clone()
    return means


def _tie(averaged: dict[str, "Tensor"], newest: dict[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Let names that share memory in `newest` share it in `averaged`."""
    first = first_names(newest)
    return {name: averaged[first[name]] for name in newest}


def first_names(model: dict[str, "Tensor"]) -> dict[str, str]:
    """Map each name to the first name of the same tensor: its own, unless tied to another."""
    first: dict[tuple[object, ...], str] = {}
    names = {}
    for name, value in model.items():
        memory = (value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,)
        names[name] = first.setdefault(memory, name)
    return names
