"""Tasks, models and batches in this process, configured by command-line words."""

from dataclasses import dataclass
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import highrank_plugins
from tests.trainings import OUR_LOSS, task_and_shape

highrank_plugins.register()


@dataclass
class Built:
    """What `fairseq-train` builds before its first update."""

    cfg: Any
    task: Any
    model: Any
    criterion: Any

    def batch(self, split: str = "valid", sentences: int = 6) -> dict:
        """Return the first sentences of a split."""
        self.task.load_dataset(split)
        data = self.task.dataset(split)
        return data.collater([data[i] for i in range(sentences)])


def configure(data, arch: str, *words: object):
    """Return the configuration of `fairseq-train data --arch arch …`."""
    criterion = [] if "--criterion" in words else OUR_LOSS
    line = [data, "--arch", arch, *task_and_shape(arch), *criterion, *words]
    args = options.parse_args_and_arch(options.get_training_parser(), [str(x) for x in line])
    return convert_namespace_to_omegaconf(args)


def build(data, arch: str, *words: object) -> Built:
    """Everything of `fairseq-train data --arch arch …` short of the trainer, seeded."""
    cfg = configure(data, arch, *words)
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(cfg.common.seed)
    model = task.build_model(cfg.model)
    return Built(cfg, task, model, task.build_criterion(cfg.criterion))
