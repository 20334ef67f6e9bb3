"""A training run that is asked to stop loses its updates since the last checkpoint.

What breaks: SIGTERM and SIGUSR1, by which clusters announce the end of a job's time, and SIGHUP,
which a closing terminal sends, end fairseq-train at once.
Why: it handles no signals.
What we do: handle them before data and checkpoint are loaded, which may take minutes. After each
update, and after its validation and checkpoint where these are due, check whether `highrank launch`
or a signal asked any process to stop (`stop_request.py`). Then all processes write the checkpoint
and end together, with exit code 75. Nothing is skipped, so the resumed training run equals an
uninterrupted one. Until then a signal has no effect: an update, a validation and a checkpoint must
fit into the remaining time.
Delete when: fairseq does so. `training_events.py` calls this.
"""

import logging

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq_cli import train as training

from highrank_plugins.common import stop_request
from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)


@replaces(training, "main")
def main(stock, *args, **kwargs):
    """Load and train, and handle requests to stop; handle signals afterwards as before."""
    with stop_request.handlers_restored():
        stop_request.listen_unprepared()
        return stock(*args, **kwargs)


def leave_if_asked(cfg, trainer, epoch_itr, is_saved: bool) -> None:
    """End the process with a checkpoint of this update if any process of the run is asked to.

    Every process must call it after the same update.
    """
    if not stop_request.listening() or not _anybody_asked(trainer):
        return
    if not is_saved:
        checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, None)
    if trainer.data_parallel_world_size > 1:
        # if one ended before the checkpoint is written, the launcher would end the others
        torch.distributed.barrier()
    updates = trainer.get_num_updates()
    logger.info("stopping after update %d; run the same command to resume", updates)
    stop_request.leave()


def _anybody_asked(trainer) -> bool:
    asked = stop_request.asked()
    if trainer.data_parallel_world_size == 1:
        return asked
    votes = torch.tensor([float(asked)], device=trainer.device)
    distributed_utils.all_reduce(votes, group=trainer.data_parallel_process_group)
    return votes.item() > 0
