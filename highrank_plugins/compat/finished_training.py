"""A finished training that is started again takes one more update.

What breaks: repeating a command after it reached `--max-update` (a scheduler that restarts jobs, a
recipe killed just before it noted the end) changes the parameters and writes new checkpoints.
Why: fairseq compares updates with `--max-update` after an update, never before the first.
What we do: look before the first update of an epoch too.
Delete when: `fairseq_cli.train.train` does so.
"""

import logging
import math

from fairseq_cli import train as training

from highrank_plugins.compat._patch import replaces

logger = logging.getLogger(__name__)


@replaces(training, "train")
def train(stock, cfg, trainer, task, epoch_itr):
    """One epoch, unless nothing is left to do; returns validation losses and whether to stop."""
    done, bound = trainer.get_num_updates(), cfg.optimization.max_update or math.inf
    if done < bound:
        return stock(cfg, trainer, task, epoch_itr)
    logger.info("nothing left to train: %d updates are done, --max-update is %d", done, bound)
    return [None], True
