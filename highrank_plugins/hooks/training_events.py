"""An optimizer that averages weights, and a task with state, learn too little, too late.

What breaks: the validation loss of an epoch reaches the learning-rate scheduler after the
checkpoint is written, rounded, so that a run resumed at the end of an epoch has lost it and
switches averaging on in another epoch, or never. Nothing lets validation and checkpoints use
averaged weights. A task can add to a checkpoint what its own process holds, but not what others do.
A model does not learn which of its forward passes belong to which update.
Why: `Trainer` and `save_checkpoint` call the task or the optimizer in one process only, or do not.
What we do: call these methods where an optimizer (torch's, inside fairseq's) or a task has them:
`begin_epoch(epoch)`; `before_validation()`; `after_epoch(loss)` with the validation loss at the end
of an epoch, before it is saved; `before_save()`. Optimizers have all four, tasks the last and
`begin_update()`, called again when an update is tried again. Every process calls them. An optimizer
whose attribute `finished` is true ends the training. The attribute `monitor` of a model, if any, is
told `before_update(updates)` and `after_update(updates, logdir)`, with the number of updates done
and --tensorboard-logdir, in the first process only; both numbers are the same where an update
failed.
Delete when: fairseq has such hooks.
"""

import logging

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer
from fairseq_cli import train as training

from highrank_plugins.common.patching import replaces
from highrank_plugins.hooks.early_stopping_state import step_at_end_of_epoch
from highrank_plugins.hooks.preemption import leave_if_asked

logger = logging.getLogger(__name__)


def tell(listener, event: str, *details) -> None:
    """Call the method `event`, if there is one."""
    method = getattr(listener, event, None)
    if method is not None:
        method(*details)


@replaces(Trainer, "begin_epoch")
def begin_epoch(stock, trainer, epoch):
    """Start an epoch of training."""
    tell(trainer.optimizer.optimizer, "begin_epoch", epoch)
    return stock(trainer, epoch)


@replaces(Trainer, "train_step")
def train_step(stock, trainer, samples, raise_oom=False):
    """One update; what fairseq logs of it."""
    monitor = trainer.is_data_parallel_master and getattr(trainer.get_model(), "monitor", None)
    tell(monitor, "before_update", trainer.get_num_updates())
    tell(trainer.task, "begin_update")
    logged = stock(trainer, samples, raise_oom)
    logdir = trainer.cfg.common.tensorboard_logdir
    tell(monitor, "after_update", trainer.get_num_updates(), logdir)
    return logged


@replaces(Trainer, "begin_valid_epoch")
def begin_valid_epoch(stock, trainer, epoch):
    """Start a validation."""
    tell(trainer.optimizer.optimizer, "before_validation")
    return stock(trainer, epoch)


@replaces(training, "validate")
def validate(stock, cfg, trainer, task, epoch_itr, subsets):
    """Validation losses of all subsets; the first one is that of the epoch."""
    losses = stock(cfg, trainer, task, epoch_itr, subsets)
    if epoch_itr.end_of_epoch():
        sign = -1 if cfg.checkpoint.maximize_best_checkpoint_metric else 1
        tell(trainer.optimizer.optimizer, "after_epoch", sign * losses[0])
    step_at_end_of_epoch(trainer, epoch_itr, losses[0])
    return losses


def is_finished(trainer) -> bool:
    """Whether the optimizer wants the training to end."""
    return getattr(trainer.optimizer.optimizer, "finished", False)


@replaces(training, "validate_and_save")
def validate_and_save(stock, cfg, trainer, task, epoch_itr, *args, **kwargs):
    """Validation losses, and whether to stop."""
    losses, stop = stock(cfg, trainer, task, epoch_itr, *args, **kwargs)
    if is_finished(trainer):
        logger.info("the validation loss has stopped to fall: the training ends")
    stop = stop or is_finished(trainer)
    if not stop:
        is_saved = getattr(trainer, "saved_after", None) == trainer.get_num_updates()
        leave_if_asked(cfg, trainer, epoch_itr, is_saved)
    return losses, stop


@replaces(checkpoint_utils, "save_checkpoint")
def save_checkpoint(stock, cfg, trainer, epoch_itr, val_loss):
    """Save, once everybody has handed in what belongs to it."""
    if not cfg.no_save:
        tell(trainer.optimizer.optimizer, "before_save")
        tell(trainer.task, "before_save")
    trainer.saved_after = trainer.get_num_updates()
    return stock(cfg, trainer, epoch_itr, val_loss)
