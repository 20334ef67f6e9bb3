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

    def dataset(self, split: str):
        self.task.load_dataset(split)
        return self.task.dataset(split)

    def batch(self, split: str = "valid", sentences: int = 6) -> dict:
        """Return the first sentences of a split."""
        data = self.dataset(split)
        return data.collater([data[i] for i in range(sentences)])

    def batches(self, split: str = "train", epoch: int = 1, **options) -> list[dict]:
        """Return an epoch's batches as a trainer gets them, with --batch-size 4 unless given."""
        of_training = {"update_epoch_batch_itr": False} if split == "train" else {}
        options = {"max_sentences": 4} | of_training | options
        data = self.dataset(split)
        return list(self.task.get_batch_iterator(data, epoch=epoch, **options).next_epoch_itr())

    @torch.no_grad()
    def log_probs(self, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log P of all sentences [N, M] and their words [N], one sentence at a time."""
        data, found, words = self.dataset(split), [], []
        for index in range(len(data)):
            batch = data.collater([data[index]])
            out = self.model.eval()(**batch["net_input"])
            found.append(self.model.get_normalized_probs(out, log_probs=True)[0])
            words.append(batch["target"][0])
        return torch.cat(found), torch.cat(words)


def parse(words):
    """Return the configuration of `fairseq-train WORD…`."""
    args = options.parse_args_and_arch(options.get_training_parser(), [str(x) for x in words])
    return convert_namespace_to_omegaconf(args)
