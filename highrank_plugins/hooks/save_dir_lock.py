"""Two trainings in one --save-dir overwrite each other's checkpoints.

What breaks: the same command started twice, by hand or by a scheduler, trains twice into one
directory, with exit code 0; checkpoints of the two get mixed.
Why: fairseq does not look who else writes there.
What we do: the first process of a training holds a lock on `training.lock` in --save-dir until it
ends; another training is refused and told who holds it. The system releases the lock of a killed
process. The lock is not inherited: data workers that outlive their trainer do not hold it. Runs
with --no-save take none. Whoever gets the lock removes what a killed save has left.
Delete when: fairseq does so.
"""

import fcntl
import glob
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from fairseq_cli import train as training

from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)


@replaces(training, "main")
def main(stock, cfg, *args, **kwargs):
    """Train, unless another training writes into --save-dir."""
    first = cfg.distributed_training.distributed_rank == 0
    alone = first and not cfg.checkpoint.no_save
    with locked(cfg.checkpoint.save_dir) if alone else nullcontext():
        return stock(cfg, *args, **kwargs)


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the folder's lock.

    Raises:
        RuntimeError: another process holds it; names the process.
    """
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "training.lock"), "a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise RuntimeError(
                f"--save-dir {folder} is in use by another training "
                f"({file.read().strip() or 'unknown process'}): wait for its end or stop it, or "
                "choose another --save-dir"
            ) from None
        except OSError as error:
            logger.warning("%s: cannot be locked (%s); start one training only", folder, error)
        for left in glob.glob(os.path.join(glob.escape(folder), "checkpoint*.pt.tmp")):
            os.unlink(left)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
