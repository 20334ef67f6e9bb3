"""fairseq looks for `--best-checkpoint-metric` only after an epoch of training.

What breaks: a misspelt metric, accuracy without `--report-accuracy`, or BLEU without `--eval-bleu`
ends in a KeyError after the first epoch, which is lost.
Why: nothing knows what a validation computes before one has ended.
What we do: before the first update, compute the smallest part of a validation, a batch, and look
for the metric among its numbers, unless it is the loss. A metric of `--eval-METRIC` needs
translations, so it waits for the first validation, which looks again.
Delete when: fairseq looks before it trains.
"""

from collections.abc import Mapping
from typing import Any

from fairseq import utils
from fairseq.logging import metrics
from fairseq_cli import train as training

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError


@replaces(training, "train")
def train(stock, cfg, trainer, task, epoch_itr):
    """Train for an epoch; before the first one, look for the metric."""
    if not getattr(trainer, "highrank_metric", False):
        trainer.highrank_metric = True
        metric = cfg.checkpoint.best_checkpoint_metric
        is_sure = metric == "loss" or getattr(cfg.task, f"eval_{metric}", False)
        if not is_sure and not cfg.dataset.disable_validation:
            _try_validation(cfg, trainer)
    return stock(cfg, trainer, task, epoch_itr)


def _try_validation(cfg, trainer) -> None:
    """Look for the metric in the numbers of a batch, which is the same in all processes."""
    batch = trainer.get_valid_iterator(cfg.dataset.valid_subset.split(",")[0]).first_batch
    if not isinstance(batch, dict):  # the data cannot be read without workers
        return
    with utils.set_torch_seed(cfg.common.seed), metrics.aggregate(new_root=True) as found:
        trainer.valid_step(batch)
    require_metric(cfg, found.get_smoothed_values())


@replaces(training, "get_valid_stats")
def get_valid_stats(stock, cfg, trainer, stats, tracking_best):
    """Return the numbers of a validation.

    Raises:
        UserError: See `require_metric`.
    """
    require_metric(cfg, stats)
    return stock(cfg, trainer, stats, tracking_best)


def require_metric(cfg, stats: Mapping[str, Any]) -> None:
    """Look for the metric among the numbers of a validation.

    Raises:
        UserError: It is missing; names what there is.
    """
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric in stats:
        return
    remedy = ""
    if hasattr(cfg.task, f"eval_{metric}"):
        remedy = f"; add --eval-{metric.replace('_', '-')} to compute it"
    raise UserError(
        f"--best-checkpoint-metric {metric}: a validation computes {', '.join(stats)} only"
        f"{did_you_mean(metric, list(stats))}{remedy}"
    )
