"""fairseq-train does not log when a training run will end.

What breaks: the bar of fairseq-train shows the time left of the epoch, and a log file shows none.
Why: fairseq does not look beyond the epoch.
What we do: after an epoch, log the time left until `--max-epoch` or `--max-update`, whichever comes
first, at the speed since the start. Validations and checkpoints count; a resumed run counts from
its resumption. Early stopping may end it sooner.
Delete when: fairseq logs the time left of the whole training run.
"""

import logging
import time
from datetime import timedelta

from fairseq_cli import train as training

from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)


@replaces(training, "train")
def train(stock, cfg, trainer, task, epoch_itr):
    """Train for an epoch, and log the time left."""
    if not hasattr(trainer, "highrank_start"):
        trainer.highrank_start = time.monotonic(), trainer.get_num_updates()
    before = trainer.get_num_updates()
    result = stock(cfg, trainer, task, epoch_itr)
    start, first = trainer.highrank_start
    updates = trainer.get_num_updates()
    left = seconds_left(
        time.monotonic() - start,
        updates - first,
        cfg.optimization.max_update - updates if cfg.optimization.max_update else None,
        (cfg.optimization.max_epoch - epoch_itr.epoch) * (updates - before)
        if cfg.optimization.max_epoch
        else None,
    )
    if left:
        logger.info("epoch %d is done; about %s left", epoch_itr.epoch, _clock(left))
    return result


def seconds_left(elapsed: float, done: int, *bounds: int | None) -> float | None:
    """Return the seconds until the nearest of the bounds, in updates; None without one."""
    updates = [bound for bound in bounds if bound is not None]
    return elapsed / done * max(min(updates), 0) if updates and done > 0 else None


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
