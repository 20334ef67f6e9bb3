"""Start Python as a child, end it with its parent, and count the cores and memory it may use."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CHECKOUT = str(Path(__file__).parents[2])


def python(*words: str) -> list[str]:
    """Return the command of another Python, such as `-m MODULE`, that imports what this one does.

    Files of the working directory take no module's place, unless this package comes from there.
    """
    trusted = sys.path[0] == os.getcwd() == _CHECKOUT
    return [sys.executable, *([] if trusted else ["-P"]), *words]


def end_with_parent(launcher: int = 0) -> None:
    """Make the system kill this process when its parent is gone (Linux).

    Args:
        launcher: a process with which this one ends, too, even if it is gone already.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if launcher:
        threading.Thread(target=_end_after, args=(os.pidfd_open(launcher),), daemon=True).start()


def end_with_main_process() -> None:
    """End this worker of `multiprocessing` when the process that asked for workers is gone.

    With a fork server it is not the worker's parent, and workers keep their own queue open.
    """
    main = multiprocessing.parent_process()
    assert main is not None
    threading.Thread(target=_end_after, args=(main.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def usable_cores() -> int:
    """Return the number of cores that this process may use, as the system or a scheduler says."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib() -> float:
    """Return the memory of the machine in GiB."""
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
