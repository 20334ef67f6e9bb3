"""Stop a training run when asked, by a launcher's file or a signal; loads before torch."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

# a closing terminal sends SIGHUP; if nohup ignores it, so do we
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
# EX_TEMPFAIL of sysexits.h: "try again later"
REQUEUE = 75
# folder of one machine, or of a SLURM job: the file `stop` asks the processes to stop; they answer
# with `started` and `stopped`
DIRECTORY = "HIGHRANK_STOP_DIRECTORY"
# number of the `highrank launch` that started a process itself; not set by srun
LAUNCHED = "HIGHRANK_LAUNCHED"

# requests within this time count as one, such as a request that arrives in two ways
SAME_REQUEST_SECONDS = 1.0
_INTERRUPT_DELAY = 0.2

_signalled_at: float | None = None
_listener: int | None = None


def ignore() -> None:
    """Ignore `SIGNALS` in this process, and in programs it turns into, until `listen`."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def listen() -> None:
    """Let `SIGNALS` ask this process to stop from now on, instead of ending it."""
    global _listener
    _listener = os.getpid()
    handle(_note, _asked_at)
    _answer("started")


def handle(
    handler: Callable[[int, FrameType | None], object], asked_at: Callable[[], float | None]
) -> None:
    """Call a function at each of `SIGNALS`, except for a SIGHUP that is ignored.

    SIGINT ends this process as before, unless one of `SIGNALS` came with it, at `asked_at()`.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        interrupted_at = time.monotonic()  # a machine that halts for a while must not count
        time.sleep(_INTERRUPT_DELAY)
        # Python handles SIGINT first, and looks for others that came with it only at a new signal
        handler = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, handler)
        at = asked_at()
        if at is None or interrupted_at - at > SAME_REQUEST_SECONDS:
            raise KeyboardInterrupt

    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def listen_unprepared() -> None:
    """Listen in a training run that no launcher has started, if nobody else handles `SIGNALS`."""
    if listening() or threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        listen()


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Restore the signal handlers at the end of the block, and stop to listen if it began to."""
    global _listener, _signalled_at
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)}
    listened = listening()
    try:
        yield
    finally:
        if not listened:
            _listener, _signalled_at = None, None
        for number, handler in before.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


def listening() -> bool:
    """Whether this process called `listen`, and not the one that it was forked from."""
    return _listener == os.getpid()


def launchers_folder() -> str:
    """Return the folder of a launcher on this machine; under SLURM it is on a shared disk."""
    return os.environ.get(DIRECTORY, "") if LAUNCHED in os.environ else ""


def asked() -> bool:
    """Whether this process is to stop."""
    # SLURM uses signals only; polling a file on a shared disk is too slow
    folder = launchers_folder()
    return _signalled_at is not None or (folder != "" and Path(folder, "stop").exists())


def _asked_at() -> float | None:
    """Return when one of `SIGNALS` came; if none, take the SIGINT of plain torchrun for one."""
    # of several signals that torchrun gets at once, it passes on one
    if _signalled_at is None and "TORCHELASTIC_RUN_ID" in os.environ and LAUNCHED not in os.environ:
        _note(signal.SIGINT, None)
    return _signalled_at


def leave() -> NoReturn:
    """End this process after its checkpoint is written."""
    # torchrun would restart everything, and srun kill the others, if the code were not 0
    raise SystemExit(0 if _answer("stopped") else REQUEUE)


def _answer(name: str) -> bool:
    if directory := os.environ.get(DIRECTORY):
        Path(directory, name).touch()
    return bool(directory)


def _note(_number: int, _frame: FrameType | None) -> None:
    # processes that load data inherit this: a signal to the whole group must leave them working
    # until the checkpoint is written; they end with their trainer
    global _signalled_at
    if listening() and _signalled_at is None:
        say_that_it_stops()
    _signalled_at = time.monotonic()


def say_that_it_stops() -> None:
    """Print, in a signal handler, what the request leads to: an update may take minutes."""
    with suppress(OSError):  # a closed terminal takes no more text
        os.write(2, b"asked to stop: finishing this update, then saving a checkpoint\n")
