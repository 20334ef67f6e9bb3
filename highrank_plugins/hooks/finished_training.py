"""A finished training run that is started again takes one more update.

What breaks: repeating a command after it reached `--max-update` (a scheduler that restarts jobs, a
recipe killed just before it noted the end) changes the parameters and writes new checkpoints.
Why: fairseq compares updates with `--max-update` after an update, never before the first.
What we do: compare before the first update of an epoch too; and ask the optimizer and `--patience`,
which may have ended the training run (training_events.py, early_stopping_state.py).
Delete when: `fairseq_cli.train.train` does so.
"""

import logging
import math

from fairseq_cli import train as training

from highrank_plugins.common.patching import replaces
from highrank_plugins.hooks.early_stopping_state import stopped_early
from highrank_plugins.hooks.training_events import is_finished

logger = logging.getLogger(__name__)


@replaces(training, "train")
def train(stock, cfg, trainer, task, epoch_itr):
    """Train one epoch, if any is left; return validation losses and whether to stop."""
    done, bound = trainer.get_num_updates(), cfg.optimization.max_update or math.inf
    if done < bound and not is_finished(trainer) and not stopped_early(cfg):
        return stock(cfg, trainer, task, epoch_itr)
    logger.info("nothing left to train: %d updates are done, --max-update is %s", done, bound)
    return [None], True
