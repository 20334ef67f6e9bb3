"""A signal to all processes of a run ends its data workers before its checkpoint is written.

What breaks: a recipe that is told to stop, SLURM and `kill -- -GROUP` send SIGTERM to the data
workers, too. These end at once, and the run ends with "DataLoader worker exited unexpectedly"
instead of a checkpoint. SIGINT together with SIGTERM has the same effect.
Why: torch's handler in a worker ends it at any SIGTERM, and replaces the one that it inherits.
What we do: a worker lets the signals of `stop_request.py` pass, except those that its own run
sends to end it. It ignores SIGINT, which its run handles.
Delete when: torch's workers leave SIGTERM from other processes to their parent.
"""

import multiprocessing
import os
import signal
import threading

from torch.utils.data import DataLoader

from highrank_plugins.common import stop_request
from highrank_plugins.common.patching import replaces


@replaces(DataLoader, "__init__")
def __init__(stock, loader, *args, **kwargs):
    """Construct a loader whose workers outlive signals to the whole training run."""
    stock(loader, *args, **kwargs)
    if loader.worker_init_fn is None:
        loader.worker_init_fn = obey_parent_only


def obey_parent_only(_worker: int) -> None:
    """Let signals pass by this worker, except those of its parent, which end it."""
    # Python's handlers cannot tell who sent a signal; a thread that waits for it can
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_request.SIGNALS)
    threading.Thread(target=_end_with_parent, name="signals", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()  # `os.getppid` may be a server that forks
    while parent and signal.sigwaitinfo(stop_request.SIGNALS).si_pid != parent.pid:
        pass
    os._exit(0)
