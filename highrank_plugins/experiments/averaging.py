"""The average of the last checkpoints of a training, which usually translates better than each."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.experiments.checkpoint_file import look_up

if TYPE_CHECKING:
    from torch import Tensor

# of an epoch's end, of an update within an epoch, and the newest whatever it is
_NAME = re.compile(r"checkpoint(?:\d+|_\d+_(\d+)|_last)\.pt")
State = dict[str, Any]


def last_checkpoints(directory: Path, count: int) -> list[Path]:
    """The `count` checkpoints of `directory` with the most updates, in the order of training.

    These are `checkpoint<epoch>.pt`, `checkpoint_<epoch>_<updates>.pt` and `checkpoint_last.pt`.
    Several with the same number of updates, which are copies, count once.

    Raises:
        ValueError: there are fewer, or a file cannot be read; says what to change.
    """
    found: dict[int, Path] = {}
    for path in sorted(directory.glob("*.pt")):  # checkpoint_last.pt after those with numbers
        match = _NAME.fullmatch(path.name)
        if match:
            found.setdefault(int(match[1]) if match[1] else _updates(path), path)
    if len(found) < count:
        raise ValueError(
            f"{directory} has {len(found)} checkpoints of different updates, {count} are to be "
            "averaged: train longer, save more often (--save-interval-updates), keep more "
            "(--keep-last-epochs), or average fewer (--last)"
        )
    return [found[updates] for updates in sorted(found)[len(found) - count :]]


def _updates(path: Path) -> int:
    return int(look_up(path, "optimizer_history", -1, "num_updates"))


def average_checkpoints(paths: list[Path], output: Path) -> None:
    """Write the newest of `paths` (the last) with averaged weights, for inference and warm starts.

    Sums are float64, so the average of equal weights is these weights. Integer tensors are the
    newest. Tied weights stay tied. The state of the optimizer is left out. Checkpoints are read
    one after the other, as fairseq reads them: safely, refusing damaged files.

    Raises:
        ValueError: parameters differ in name or shape; names the file.
    """
    import highrank_plugins

    highrank_plugins.register()
    from fairseq.checkpoint_utils import torch_persistent_save

    total: dict[str, Tensor] = {}
    for path in paths:
        state = _load(path)
        _check_same(total, state["model"], path)
        for name, value in state["model"].items():
            total[name] = _add(total.get(name), value)
    state["model"] = _tie(_divide(total, state["model"], len(paths)), state["model"])
    torch_persistent_save(state, str(output))


def _load(path: Path) -> State:
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu
    from omegaconf import OmegaConf

    state: State = load_checkpoint_to_cpu(str(path))
    state.pop("last_optimizer_state", None)
    # stored as plain containers, as fairseq's trainer does
    state["cfg"] = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    return state


def _check_same(total: dict[str, "Tensor"], model: dict[str, "Tensor"], path: Path) -> None:
    if not total:
        return
    names = total.keys() | model.keys()
    different = [n for n in names if _shape(total.get(n)) != _shape(model.get(n))]
    if different:
        raise ValueError(
            f"{path}: {min(different)} is missing, new, or has another shape than in the "
            "checkpoints before: they are not of one training"
        )


def _shape(value: "Tensor | None") -> object:
    return None if value is None else value.shape


def _add(total: "Tensor | None", value: "Tensor") -> "Tensor":
    if not value.is_floating_point():
        return value
    return value.double().clone() if total is None else total.add_(value)


def _divide(
    total: dict[str, "Tensor"], newest: dict[str, "Tensor"], count: int
) -> dict[str, "Tensor"]:
    return {
        name: (value / count).to(newest[name].dtype) if value.is_floating_point() else value
        for name, value in total.items()
    }


def _tie(averaged: dict[str, "Tensor"], newest: dict[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Let names that share memory in `newest` share it in `averaged`."""
    first: dict[tuple[object, ...], str] = {}
    tied = {}
    for name, value in newest.items():
        memory = (value.data_ptr(), value.shape, value.stride()) if value.numel() else (name,)
        tied[name] = averaged[first.setdefault(memory, name)]
    return tied
