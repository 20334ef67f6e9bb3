"""Define the events of a training run, which `hooks` sends to listeners."""

from collections.abc import Mapping
from typing import Any


class TrainingListener:
    """Receive fairseq's training events: base of optimizers (torch's), tasks and models.

    A listener overrides what it needs; the methods here do nothing. Every process calls them.
    """

    # Also listens, but only in the first process.
    monitor: "TrainingListener | None" = None

    def function_options(self) -> Mapping[str, Any]:
        """Return the model options that each checkpoint must hold, wherever they were set."""
        return {}

    def check_saved_options(self, options: Mapping[str, Any]) -> None:
        """Compare the model options of a checkpoint with ours, before it is loaded."""

    def before_epoch(self, epoch: int) -> None:
        """Prepare for an epoch of training, counted from 1."""

    def before_update(self, updates: int) -> None:
        """Prepare for the update after `updates` ones, or for the repetition of a failed one."""

    def after_update(self, updates: int, logdir: str | None) -> None:
        """React to an update; `updates` is as before if it failed, `logdir` TensorBoard's."""

    def before_validation(self) -> None:
        """Prepare for a validation."""

    def after_epoch(self, loss: float) -> None:
        """React to the validation loss of an epoch, before the checkpoint is written."""

    def before_save(self) -> None:
        """Prepare what a checkpoint will hold."""

    @property
    def finished(self) -> bool:
        """Whether the training run should end."""
        return False


def listening(*candidates: object) -> list[TrainingListener]:
    """Return the candidates that listen."""
    return [candidate for candidate in candidates if isinstance(candidate, TrainingListener)]
