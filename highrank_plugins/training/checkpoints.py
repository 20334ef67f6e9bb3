"""Choose checkpoints of a run, and average them; this usually translates better than each."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import highrank_plugins
from highrank_plugins.common.checkpoint_file import (
    read_checkpoint,
    saved_options,
    warn_without_hash,
)
from highrank_plugins.common.names import criterion, direction, flag, reversed_flag

if TYPE_CHECKING:
    from torch import Tensor

# names of checkpoints: of an epoch, of an update, and the newest
_IN_ORDER = re.compile(r"checkpoint(?:\d+|_\d+_(\d+)|_last)\.pt")
# those, and the best checkpoints, also by --keep-best-checkpoints
_ANY = re.compile(r"checkpoint(?:\d+|_\d+_(\d+)|_last|_best|\.best_.+)\.pt")


def last_checkpoints(directory: Path, count: int) -> list[Path]:
    """Return the `count` checkpoints with most updates, in training order; copies count once."""
    found = _found(directory, _IN_ORDER)
    _check_enough(directory, len(found), count, "of different updates")
    return [found[number] for number in sorted(found)[-count:]]


def best_checkpoints(directory: Path, count: int) -> list[Path]:
    """Return the `count` checkpoints with the best finite validation score, in training order."""
    found = _found(directory, _ANY)
    scores = {
        number: float(score)
        for number, path in found.items()
        if (score := read_checkpoint(path, "extra_state").get("val_loss")) is not None
        and math.isfinite(score)
    }
    _check_enough(directory, len(scores), count, "with a validation score")
    sign = common_sign([found[number] for number in scores])
    best = sorted(scores, key=lambda number: (-sign * scores[number], -number))[:count]
    return [found[number] for number in sorted(best)]


def _found(directory: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    """Return checkpoints by their numbers of updates."""
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such folder")
    found: dict[int, Path] = {}
    for path in sorted(directory.glob("*.pt")):  # sorts checkpoint_last.pt after numbered ones
        if match := pattern.fullmatch(path.name):
            last = ("optimizer_history", -1, "num_updates")
            found.setdefault(int(match[1] or read_checkpoint(path, *last)), path)
    return found


def _check_enough(directory: Path, found: int, wanted: int, which: str) -> None:
    if found < wanted:
        raise ValueError(
            f"{directory}: found {found} of {wanted} checkpoints {which} to average. Train "
            "longer, save more often (--save-interval-updates), keep more (--keep-last-epochs), or "
            "average fewer (--last, --best)"
        )


def average_checkpoints(paths: list[Path], output: Path) -> None:
    """Write the newest of `paths` (the last) with averaged weights, for inference and warm starts.

    Sums are float64, so the average of equal weights is these weights. Integer tensors come from
    the newest checkpoint. Tied weights stay tied. Memory holds the sum and one checkpoint.
    """
    highrank_plugins.register()
    import torch
    from fairseq.checkpoint_utils import torch_persistent_save

    output.parent.mkdir(parents=True, exist_ok=True)  # raises before the work, which takes minutes
    state = load_without_weights(paths[-1])
    _require_same(paths, _function_of, "average checkpoints of one run, with")
    total: dict[str, Tensor] = {}
    for path in paths:
        model = mapped_model(path)
        shapes = {name: value.shape for name, value in model.items()}
        before = {name: value.shape for name, value in total.items()} or shapes
        if different := {*shapes.items()} ^ {*before.items()}:
            raise ValueError(
                f"{path}: {min(different)[0]} is missing, new, or has another shape than in the "
                "other checkpoints: they do not belong to one training run"
            )
        for name, value in model.items():
            if not value.is_floating_point():
                total[name] = value
            elif name in total:
                total[name] += value
            else:
                total[name] = value.to(torch.float64, copy=True)
    means = {}
    for name, like in model.items():
        value = total.pop(name)  # frees its memory
        means[name] = (
            (value / len(paths)).to(like.dtype) if like.is_floating_point() else value.clone()
        )
    first = first_names(model)
    state["model"] = {name: means[first[name]] for name in model}
    torch_persistent_save(state, str(output))


def load_without_weights(path: Path) -> dict[str, Any]:
    """Load a checkpoint as fairseq does, as plain containers, without weights and optimizer."""
    highrank_plugins.register()
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu
    from omegaconf import OmegaConf

    state: dict[str, Any] = load_checkpoint_to_cpu(str(path))
    state.pop("last_optimizer_state", None)
    del state["model"]
    # stored as plain containers, as fairseq's trainer does
    options = configuration_of(state)
    state["cfg"] = OmegaConf.to_container(options, resolve=True, enum_to_str=True)
    return state | {"args": None}


def _require_same(paths: list[Path], facts: Callable[[Path], dict[str, Any]], rule: str) -> None:
    """Refuse checkpoints of which two say different facts."""
    first: dict[str, tuple[Path, Any]] = {}
    for path in paths:
        for what, value in facts(path).items():
            there, other = first.setdefault(what, (path, value))
            if value != other:
                raise ValueError(
                    f"{there} has {what} {other}, and {path} has {value}: {rule} one {what}"
                )


def _function_of(path: Path) -> dict[str, Any]:
    """Return the options of the output layer, and the hashes of the dictionaries, where saved."""
    state = read_checkpoint(path)
    in_training_alone = ("loss", "monitor", "dropout", "noise", "lr")
    found = {
        flag(name): value
        for name, value in saved_options(state, "model").items()
        if name.split("_")[0] == "head" and not any(word in name for word in in_training_alone)
    }
    hashes = (state.get("task_state") or {}).get("dictionaries")
    return found | ({"dictionary": hashes} if hashes else {})


def first_names(model: dict[str, "Tensor"]) -> dict[str, str]:
    """Map each name to the first name of the same tensor: its own, unless tied to another."""
    first: dict[tuple[object, ...], str] = {}
    names = {}
    for name, value in model.items():
        memory = (value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,)
        names[name] = first.setdefault(memory, name)
    return names


def configuration_of(state: Mapping[str, Any]) -> Any:
    """Return all blocks of a loaded checkpoint's options, also of fairseq 0.9 and 0.10."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    return state.get("cfg") or convert_namespace_to_omegaconf(state["args"])


def mapped_model(path: Path) -> "dict[str, Tensor]":
    """Return a checkpoint's weights, mapped into memory as they are read; compare checksums."""
    model: dict[str, Tensor] = read_checkpoint(path, "model", whole=True)
    warn_without_hash(str(path), read_checkpoint(path))
    return model


def best_checkpoint(directories: list[Path]) -> Path:
    """Return `checkpoint_best.pt` of the first training run with the best validation score."""
    found = [directory / "checkpoint_best.pt" for directory in directories]
    scores = {path: float(read_checkpoint(path, "extra_state", "best")) for path in found}
    sign = common_sign(found)
    for path in found:
        if not math.isfinite(scores[path]):
            raise ValueError(f"{path}: its best score is not a finite number; leave this run out")
        if wrong := reversed_flag(saved_options(read_checkpoint(path), "checkpoint")):
            raise ValueError(
                f"{path} is the worst checkpoint of its run, not the best ({wrong[1]}). Take the "
                f"file of `highrank model average {path.parent} --best 1`"
            )
    return max(found, key=lambda path: sign * scores[path])


def common_sign(paths: list[Path]) -> int:
    """Return 1 if the highest validation score of the checkpoints is best, −1 if the lowest."""
    _require_same(paths, _scored_by, "these scores cannot be compared; name checkpoints of")
    return criterion(saved_options(read_checkpoint(paths[0]), "checkpoint"))[1]


def _scored_by(path: Path) -> dict[str, str]:
    """Return what a validation score depends on, as far as the checkpoint says."""
    state = read_checkpoint(path)
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
