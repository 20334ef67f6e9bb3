"""fairseq-train does not log when a training run will end, nor what it took before it was resumed.

What breaks: the bar of fairseq-train shows the time left of the epoch, and a log file shows none.
`wall` is 0 after a resumption within an epoch, and else begins at 0 again. A finetuning begins with
the hours of the training run before it, of which `--stop-time-hours` is a bound.
Why: fairseq does not look beyond the epoch. It stores the time of a run for `--stop-time-hours`
alone, and takes over that of any run.
What we do: let `wall` begin at the time in the checkpoint, or at 0 where updates do, and log it
before `train_wall`, which is the time of one update and rounds to 0. After an
epoch, log the time left until `--max-epoch` or `--max-update`, whichever comes first, at the speed
of the whole run. Validations and checkpoints count. Early stopping may end it sooner.
Delete when: fairseq logs the time left of the whole training run, and adds up `wall`.
"""

import logging
import time
from datetime import timedelta

from fairseq.logging import metrics
from fairseq.trainer import Trainer
from fairseq_cli import train as training

from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)


@replaces(Trainer, "load_checkpoint")
def load_checkpoint(stock, trainer, filename, reset_optimizer=False, *args, **kwargs):
    """Load as fairseq does, and continue the clock of a training run that is resumed."""
    extra_state = stock(trainer, filename, reset_optimizer, *args, **kwargs)
    if reset_optimizer:
        trainer._previous_training_time = 0
    clock = metrics.get_meter("default", "wall")
    # several processes store a tensor
    clock.start_time = time.perf_counter() - float(trainer.cumulative_training_time())
    return extra_state


@replaces(training, "get_training_stats")
def get_training_stats(stock, stats):
    """Return the numbers of a line of the log, `wall` before others."""
    found = stock(stats)
    return {"wall": found["wall"], **found}


@replaces(training, "train")
def train(stock, cfg, trainer, task, epoch_itr):
    """Train for an epoch, and log the time left."""
    before, batches = trainer.get_num_updates(), len(epoch_itr)
    to_do = batches - epoch_itr.iterations_in_epoch % batches  # less if resumed within an epoch
    result = stock(cfg, trainer, task, epoch_itr)
    updates = trainer.get_num_updates()
    per_epoch = round((updates - before) * batches / to_do)
    left = seconds_left(
        float(trainer.cumulative_training_time()),
        updates,
        cfg.optimization.max_update - updates if cfg.optimization.max_update else None,
        (cfg.optimization.max_epoch - epoch_itr.epoch) * per_epoch
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
