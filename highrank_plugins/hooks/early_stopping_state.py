"""Scheduler and early-stopping state are lost on resume.

What breaks: with `--lr-scheduler reduce_lr_on_plateau`, a run that is resumed at the end of an
epoch continues with the learning rate from before that epoch's loss was counted, and with an
untouched `--lr-patience`. `--patience` counts from 0 again; and a training run that it has ended
continues when it is started again.
Why: the checkpoint is written before the scheduler receives the loss; the scheduler saves the best
loss only; early stopping keeps its numbers as attributes of a function.
What we do: tell the scheduler first (`step_at_end_of_epoch`, which training_events.py calls), and
keep the numbers in the checkpoint, where `lost_checkpoints.py` finds them (`recall`). Scores of
another `--best-checkpoint-metric` are dropped as a checkpoint is read (`checkpoint_identity.py`).
`finished_training.py` asks whether the training run had been ended (`stopped_early`).
Delete when: fairseq steps schedulers before it saves, and saves all of their state.
"""

from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer
from fairseq_cli import train as training

from highrank_plugins.common.checkpoint_file import saved_options
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.score import criterion, reversed_flag

_KEY = "early_stopping"


def step_at_end_of_epoch(trainer, epoch_itr, loss) -> None:
    """Tell the scheduler the loss of an epoch."""
    if epoch_itr.end_of_epoch():
        trainer.lr_step(epoch_itr.epoch, loss)


@replaces(Trainer, "lr_step")
def lr_step(stock, trainer, epoch, val_loss=None):
    """Return the learning rate after an epoch, whose loss counts once."""
    if val_loss is not None:
        if getattr(trainer, "stepped_after", None) == epoch:
            return trainer.lr_step_update()
        trainer.stepped_after = epoch
    return stock(trainer, epoch, val_loss)


@replaces(ReduceLROnPlateauLRSchedule, "state_dict")
def plateau_state(stock, schedule):
    """Return what a checkpoint holds of the schedule."""
    return {**stock(schedule), "num_bad_epochs": schedule.lr_scheduler.num_bad_epochs}


@replaces(ReduceLROnPlateauLRSchedule, "load_state_dict")
def load_plateau_state(stock, schedule, state_dict):
    """Continue from `plateau_state`, or from what fairseq saves."""
    stock(schedule, state_dict)
    bad = state_dict.get("num_bad_epochs", schedule.lr_scheduler.num_bad_epochs)
    schedule.lr_scheduler.num_bad_epochs = bad


@replaces(training, "should_stop_early")
def should_stop_early(stock, cfg, valid_loss):
    """Whether the loss has failed to improve `--patience` times; the numbers are kept here."""
    return stock(cfg, valid_loss)


@replaces(Trainer, "state_dict")
def state_dict(stock, trainer):
    """Return what a checkpoint holds, with the numbers of early stopping."""
    state = stock(trainer)
    state["extra_state"][_KEY] = _numbers()
    return state


def recall(extra_state, forget: bool) -> None:
    """Restore the numbers of a checkpoint; start afresh without one, or if `forget` is true."""
    vars(training.should_stop_early).update(best=None, num_runs=0)
    if extra_state is not None and not forget:
        vars(training.should_stop_early).update(extra_state.get(_KEY, {}))


def drop_other_scores(cfg, state) -> None:
    """Drop the best scores of a checkpoint if they are of another metric, or of the worst ones."""
    saved = saved_options(state, "checkpoint")
    if criterion(saved) != criterion(cfg) or reversed_flag(saved):
        for name in (_KEY, "best"):
            state.get("extra_state", {}).pop(name, None)


def stopped_early(cfg) -> bool:
    """Whether `--patience` has ended this training run."""
    return 0 < cfg.checkpoint.patience <= _numbers()["num_runs"]


def _numbers() -> dict:
    kept = training.should_stop_early
    return {"best": getattr(kept, "best", None), "num_runs": getattr(kept, "num_runs", 0)}
