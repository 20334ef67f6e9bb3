"""Checkpoints of models that were built in this process, as fairseq writes them."""

from pathlib import Path

import torch
from omegaconf import OmegaConf

FEW_KNOTS = ["--head-plif-knots", "50"]
RATES = "--dropout 0.4 --dropouti 0.4 --dropouth 0.3 --dropoute 0.1 --wdrop 0.5".split()


def write_checkpoint(path: Path, built) -> Path:
    """Write a checkpoint of an untrained model (`tests.tasks.built.build`), weights large enough to
    matter."""
    torch.manual_seed(1)
    for parameter in built.model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(built.cfg, resolve=True, enum_to_str=True),
        "model": built.model.state_dict(),
        "optimizer_history": [{"optimizer_name": "x", "lr_scheduler_state": {}, "num_updates": 1}],
        "task_state": built.task.state_dict(),
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)
    return path
