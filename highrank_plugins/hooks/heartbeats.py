"""A process that hangs blocks all others, and no message names it.

What breaks: with one of several processes stopped, or stuck in its data loader or on a dead
network, the others wait for it in a collective: half an hour with gloo, ten minutes with NCCL. The
message that they print then names no process.
Why: fairseq shows no signs of life that could be watched from outside. Its --heartbeat-timeout
ends the process that waits.
What we do: note each batch, epoch, validation and checkpoint (`common/heartbeat.py`) with the
number of the update. `highrank launch` watches the notes. Under torchrun, or if fairseq starts
them, each process watches itself: one that waits ends after `HIGHRANK_STALL_TIMEOUT` seconds (600).
Delete when: fairseq does so.
"""

from typing import Any

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer
from fairseq_cli import train as training
from torch import distributed

from highrank_plugins.common.heartbeat import beat, guard
from highrank_plugins.common.patching import replaces
from highrank_plugins.hooks.user_errors import is_command


@replaces(Trainer, "train_step")
def train_step(stock, trainer, samples, raise_oom=False):
    """Do one update; the first one compiles kernels and allocates memory, and is slow."""
    if getattr(trainer, "has_stepped", False):
        beat("training")
    logged = stock(trainer, samples, raise_oom)
    trainer.has_stepped = True
    beat("training", trainer.get_num_updates())
    return logged


@replaces(Trainer, "_prepare_sample")
def prepare_sample(stock, trainer, sample, is_dummy=False):
    """Move a batch to the device, whether it is for an update or a validation."""
    if not is_dummy:  # dummy batches exist in some processes only
        beat()
    return stock(trainer, sample, is_dummy=is_dummy)


@replaces(Trainer, "_aggregate_logging_outputs")
def aggregate_logging_outputs(stock, trainer, *args, **kwargs):
    """Sum logging outputs over the processes; one that waits here is ahead of the others."""
    beat()
    return stock(trainer, *args, **kwargs)


@replaces(Trainer, "get_train_iterator")
def get_train_iterator(stock, trainer, *args, **kwargs):
    """Return the batches of an epoch."""
    if getattr(trainer, "has_stepped", False):
        beat("preparing an epoch")
    return stock(trainer, *args, **kwargs)


def _notes_phase(owner: Any, name: str, phase: str) -> None:
    """Note when a function of fairseq that interrupts the updates begins and ends."""

    @replaces(owner, name)
    def around(stock, *args, **kwargs):
        beat(phase)
        result = stock(*args, **kwargs)
        beat("training")
        return result


_notes_phase(training, "validate", "validating")
_notes_phase(checkpoint_utils, "save_checkpoint", "saving")  # others wait for the writer


@replaces(training, "main")
def main(stock, *args, **kwargs):
    """Train; what remains then is to free memory and to leave the process group."""
    if is_command() and distributed.is_initialized() and distributed.get_world_size() > 1:
        guard(distributed.get_rank())
    result = stock(*args, **kwargs)
    beat("ending")
    return result
