"""Checkpoints of fairseq as models that compute."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Checkpoint(NamedTuple):
    """What a file holds; `arch` and `task` are the names in its configuration."""

    path: str
    state: dict[str, Any]
    arch: str
    task: str


def open_checkpoint(path: Path, data: str) -> Checkpoint:
    """The contents of a file, to be used with the dictionaries in `data`.

    Raises:
        ValueError: it is damaged, or no checkpoint of fairseq. OSError: it is missing.
    """
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path), {"data": data})
    except KeyError as error:  # fairseq brings old forms up to date
        raise ValueError(f"{path} is no checkpoint of a training: it lacks {error}") from None
    cfg = state.get("cfg")
    if cfg:
        # some models of fairseq have a namespace there
        arch = getattr(cfg.model, "_name", None) or cfg.model.arch
        return Checkpoint(str(path), state, arch, cfg.task._name)
    return Checkpoint(str(path), state, state["args"].arch, state["args"].task)


def build(
    checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype | None = None
) -> tuple[Any, Any]:
    """Model, in evaluation mode and so without any dropout, and task.

    Args:
        dtype: of parameters and so of all that is computed; None: float32.
    Raises:
        ValueError: the parameters do not fit the model or the dictionary.
        OSError: a dictionary is missing.
    """
    try:
        (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task(
            [checkpoint.path], state=checkpoint.state
        )
    except FileNotFoundError as error:
        name = str(error.filename or "")
        if not Path(name).name.startswith("dict."):
            raise
        raise FileNotFoundError(
            f"{name}: no such file. A checkpoint holds no words: DATA must be the directory of "
            "fairseq-preprocess that it was trained on, or one with the same dictionaries"
        ) from None
    except RuntimeError as error:  # torch's, of parameters that do not fit
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{checkpoint.path} does not fit its configuration with the dictionaries in DATA; "
            f"take those of its training ({reason[:400]})"
        ) from None
    model.prepare_for_inference_(cfg)  # refuses heads that are not in the checkpoint
    model.eval()
    return model.to(device, dtype or torch.float32), task


def pick_device(name: str | None) -> torch.device:
    """The device of that name; None: a GPU if there is one, to each process of torchrun its own.

    Raises:
        ValueError: torch sees none.
    """
    if name is None:
        name = "cpu"
        if count := torch.cuda.device_count():
            name = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % count}"
    if name != "cpu" and not (name.startswith("cuda") and torch.cuda.is_available()):
        raise ValueError(f"--device {name}: torch sees no such device here; try --device cpu")
    return torch.device(name)
