"""fairseq tells optimizers that average weights, and tasks with state, too little, too late.

What breaks: the validation loss of an epoch reaches the learning-rate scheduler, rounded, only
after the checkpoint is written. A run resumed at the end of an epoch has lost it, and switches
averaging on in another epoch, or never. Nothing lets validation and checkpoints use averaged
weights. A task can add the state of its own process to a checkpoint, but not of the others.
A model does not learn which of its forward passes belong to which update.
Why: `Trainer` and `save_checkpoint` call task and optimizer in one process only, or not at all.
What we do: notify each `TrainingListener` among optimizer (torch's, inside fairseq's), task and
model in every process, and the model's `monitor` in the first process. A listener that is
`finished` ends the training run. A retried update is announced again.
Delete when: fairseq has such hooks.
"""

import logging

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer
from fairseq_cli import train as training

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.score import criterion
from highrank_plugins.common.training_listener import TrainingListener, listening
from highrank_plugins.hooks.early_stopping_state import step_at_end_of_epoch
from highrank_plugins.hooks.preemption import leave_if_asked

logger = logging.getLogger(__name__)


def listeners(trainer) -> list[TrainingListener]:
    """Return what listens to a training run: the torch optimizer, task, model and monitor."""
    told = listening(trainer.optimizer.optimizer, trainer.task, trainer.get_model())
    monitors = [listener.monitor for listener in told] if trainer.is_data_parallel_master else []
    return [*told, *listening(*monitors)]


@replaces(Trainer, "begin_epoch")
def begin_epoch(stock, trainer, epoch):
    """Start an epoch of training."""
    for listener in listeners(trainer):
        listener.before_epoch(epoch)
    return stock(trainer, epoch)


@replaces(Trainer, "train_step")
def train_step(stock, trainer, samples, raise_oom=False):
    """Do one update, and return what fairseq logs of it."""
    told = listeners(trainer)
    for listener in told:
        listener.before_update(trainer.get_num_updates())
    logged = stock(trainer, samples, raise_oom)
    for listener in told:
        listener.after_update(trainer.get_num_updates(), trainer.cfg.common.tensorboard_logdir)
    return logged


@replaces(Trainer, "begin_valid_epoch")
def begin_valid_epoch(stock, trainer, epoch):
    """Start a validation."""
    for listener in listeners(trainer):
        listener.before_validation()
    return stock(trainer, epoch)


@replaces(training, "validate")
def validate(stock, cfg, trainer, task, epoch_itr, subsets):
    """Return the validation losses of all subsets; the first one is the loss of the epoch."""
    losses = stock(cfg, trainer, task, epoch_itr, subsets)
    if epoch_itr.end_of_epoch():
        _, sign = criterion(cfg.checkpoint)
        for listener in listeners(trainer):
            listener.after_epoch(-sign * losses[0])
    step_at_end_of_epoch(trainer, epoch_itr, losses[0])
    return losses


def is_finished(trainer) -> bool:
    """Whether a listener wants the training run to end."""
    return any(listener.finished for listener in listeners(trainer))


@replaces(training, "validate_and_save")
def validate_and_save(stock, cfg, trainer, task, epoch_itr, *args, **kwargs):
    """Return the validation losses, and whether to stop."""
    losses, stop = stock(cfg, trainer, task, epoch_itr, *args, **kwargs)
    if is_finished(trainer):
        logger.info("Validation loss has stopped improving; stopping training.")
    stop = stop or is_finished(trainer)
    if not stop:
        is_saved = getattr(trainer, "saved_after", None) == trainer.get_num_updates()
        leave_if_asked(cfg, trainer, epoch_itr, is_saved)
    return losses, stop


@replaces(checkpoint_utils, "save_checkpoint")
def save_checkpoint(stock, cfg, trainer, epoch_itr, val_loss):
    """Save a checkpoint after every listener has prepared it."""
    if not cfg.no_save:
        for listener in listeners(trainer):
            listener.before_save()
    trainer.saved_after = trainer.get_num_updates()
    return stock(cfg, trainer, epoch_itr, val_loss)
