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


def end_with_parent() -> None:
    """Make the system kill this process when its parent is gone (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_launcher(launcher: int) -> None:
    """End this process with its parent, and now if its parent has ended before this call.

    Args:
        launcher: the process that started this one, or its parent.
    """
    end_with_parent()
    parent = os.getppid()
    # a second way, should that signal not arrive
    threading.Thread(target=_end_after, args=(os.pidfd_open(parent),), daemon=True).start()
    if launcher not in (parent, _parent_of(parent)):
        os._exit(1)


def _parent_of(process: int) -> int:
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    return int(text.rpartition(")")[2].split()[1])


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
