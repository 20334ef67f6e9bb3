"""Average checkpoints of a run; the average usually translates better than each of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from highrank_plugins.common.checkpoint_file import saved_options
from highrank_plugins.common.names import flag
from highrank_plugins.training.checkpoint_file import configuration_of, look_up, mapped_model

if TYPE_CHECKING:
    from torch import Tensor

CheckpointState = dict[str, Any]


def average_checkpoints(paths: list[Path], output: Path) -> None:
    """Write the newest of `paths` (the last) with averaged weights, for inference and warm starts.

    Sums are float64, so the average of equal weights is these weights. Integer tensors come from
    the newest checkpoint. Tied weights stay tied. The state of the optimizer is left out. Memory
    holds the sum and one checkpoint at a time. All are read safely, and damaged files are refused.

    Args:
        output: the file; its folder is created if necessary.
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
