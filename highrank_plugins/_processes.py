"""Child processes that do not outlive their parent."""

import ctypes
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Be killed when the process that started this one is gone (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_main_process() -> None:
    """Be gone, a worker of `multiprocessing`, when the process is that asked for workers.

    It is no worker's parent with a server of forks, and workers hold their own queue open.
    """
    main = multiprocessing.parent_process()
    assert main is not None
    threading.Thread(target=_end_after, args=(main.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
