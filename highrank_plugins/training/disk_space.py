"""How much of a disk the checkpoints of a training will take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import highrank_plugins
from highrank_plugins.training.command_line import words_of

# of a parameter: its weight and Adam's two moments, in float32
BYTES = 12


def training_space(options: Mapping[str, object], data: Path) -> int:
    """Bytes of all checkpoints that are there at once; with another optimizer than Adam, or fewer.

    The model is built without memory for its parameters. Where all checkpoints are kept, one stands
    for them, since nobody knows how many there will be.

    Args:
        options: of fairseq-train.
        data: the binarised data, whose dictionaries say how large the model is.
    """
    import torch
    from fairseq import tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.options import get_training_parser, parse_args_and_arch

    highrank_plugins.register()
    words = [str(data), *words_of(options)]
    cfg = convert_namespace_to_omegaconf(parse_args_and_arch(get_training_parser(), words))
    task = tasks.setup_task(cfg.task)
    with torch.device("meta"):
        model = task.build_model(cfg.model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return BYTES * parameters * _checkpoints(cfg.checkpoint)


def _checkpoints(cfg: Any) -> int:
    """How many are there at once: those that are kept, the best, the last, and a new one."""
    of_epochs = 0 if cfg.no_epoch_checkpoints else max(1, cfg.keep_last_epochs)
    within = max(1, cfg.keep_interval_updates) if cfg.save_interval_updates > 0 else 0
    return of_epochs + within + 3
