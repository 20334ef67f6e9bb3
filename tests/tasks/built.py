"""Task, model, criterion and batches of streams in this process."""

from dataclasses import dataclass
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

import highrank_plugins
from tests.stream_corpus import LOSS, SHAPE, STREAMS

highrank_plugins.register()


@dataclass
class Built:
    """What `fairseq-train` builds before its first update."""

    cfg: Any
    task: Any
    model: Any
    criterion: Any

    def batches(self, split: str = "train", epoch: int = 1, **options):
        """Return an epoch's batches as a trainer gets them, with --batch-size 4 unless given."""
        self.task.load_dataset(split)
        of_training = {"update_epoch_batch_itr": False} if split == "train" else {}
        options = {"max_sentences": 4} | of_training | options
        dataset = self.task.dataset(split)
        return list(self.task.get_batch_iterator(dataset, epoch=epoch, **options).next_epoch_itr())


def configure(data, *words: object, arch: str = "awd_lstm_lm_softmax"):
    """Return the configuration of `fairseq-train data …` on streams; later words win."""
    shape = SHAPE if arch.startswith("awd_lstm_lm") else []
    loss = [] if "--criterion" in words else LOSS
    line = [data, "--arch", arch, *shape, *loss, *STREAMS, *words]
    args = options.parse_args_and_arch(options.get_training_parser(), [str(x) for x in line])
    return convert_namespace_to_omegaconf(args)


def build(data, *words: object, arch: str = "awd_lstm_lm_softmax") -> Built:
    """Everything short of the trainer, seeded."""
    cfg = configure(data, *words, arch=arch)
    task = tasks.setup_task(cfg.task)
    torch.manual_seed(cfg.common.seed)
    model = task.build_model(cfg.model)
    return Built(cfg, task, model, task.build_criterion(cfg.criterion))
