"""What `fairseq-train` builds before its first update, in this process, from command-line words."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import highrank_plugins
from tests import hydra_compose

highrank_plugins.register()
hydra_compose.hasten()


@dataclass
class Built:
    """Hold configuration, task, model and criterion."""

    cfg: Any
    task: Any
    model: Any
    criterion: Any

    @classmethod
    def of(cls, cfg) -> Self:
        """Build everything short of the trainer, seeded."""
        task = tasks.setup_task(cfg.task)
        torch.manual_seed(cfg.common.seed)
        model = task.build_model(cfg.model)
        return cls(cfg, task, model, task.build_criterion(cfg.criterion))


def parse(words):
    """Return the configuration of `fairseq-train WORD…`."""
    args = options.parse_args_and_arch(options.get_training_parser(), [str(x) for x in words])
    return convert_namespace_to_omegaconf(args)
