"""fairseq looks for `--best-checkpoint-metric` only after an epoch of training.

What breaks: a misspelt metric, accuracy without `--report-accuracy`, or BLEU without `--eval-bleu`
ends in a KeyError after the first epoch, which is lost.
Why: nothing knows what a validation computes before one has ended.
What we do: look for the metric, unless it is the loss, in a validation of one batch before the
first update; that of `--eval-METRIC`, which takes longer, in the first validation.
Delete when: fairseq looks before it trains.
"""

from fairseq import utils
from fairseq.logging import metrics
from fairseq_cli import train as training

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError


@replaces(training, "train")
def train(stock, cfg, trainer, task, epoch_itr):
    """Train for an epoch; before the first one, look for the metric."""
    metric, seed = cfg.checkpoint.best_checkpoint_metric, cfg.common.seed
    is_sure = metric == "loss" or getattr(cfg.task, f"eval_{metric}", False)
    if not (is_sure or cfg.dataset.disable_validation or hasattr(trainer, "highrank_metric")):
        trainer.highrank_metric = metric
        batch = trainer.get_valid_iterator(cfg.dataset.valid_subset.split(",")[0]).first_batch
        if isinstance(batch, dict):  # a word, if the data cannot be read without workers
            with utils.set_torch_seed(seed), metrics.aggregate(new_root=True) as found:
                trainer.valid_step(batch)
            training.get_valid_stats(cfg, trainer, found.get_smoothed_values(), False)
    return stock(cfg, trainer, task, epoch_itr)


@replaces(training, "get_valid_stats")
def get_valid_stats(stock, cfg, trainer, stats, tracking_best):
    """Return the numbers of a validation."""
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric not in stats:
        remedy = f"; add --eval-{metric}" if hasattr(cfg.task, f"eval_{metric}") else ""
        raise UserError(
            f"--best-checkpoint-metric {metric}: a validation computes {', '.join(stats)} only"
            f"{did_you_mean(metric, stats)}{remedy}"
        )
    return stock(cfg, trainer, stats, tracking_best)
