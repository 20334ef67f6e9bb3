"""Write signs of life from a training run's processes, so that the launcher notices a hang.

Each process keeps one line in a file of the launcher's private folder. Where no launcher watches
(under srun, or plain torchrun), the process watches itself. This module imports nothing heavy, and
loads before torch.
"""

import faulthandler
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common import stop_request

TIMEOUT = "HIGHRANK_STALL_TIMEOUT"  # seconds; 0 switches the watch off
DEFAULT_TIMEOUT = 600.0
# loading data and the first update, a new epoch's batches, and a checkpoint take longer than an
# update, and show no signs of life before they end
SLOW_PHASES = ("starting", "preparing an epoch", "saving", "ending")
SLOW_FACTOR = 10
SLOW_SECONDS = 600.0  # shortest limit for slow phases
# the signal that makes a process write its stacks to its log
DUMP_SIGNAL = signal.SIGUSR2
_STDERR = 2  # sys.stderr may be replaced
_LINE_BYTES = 80  # longer than any line: pads short lines, which overwrite long ones
_LINE = re.compile(r"(\d+) (\d+) (\d+) ([a-z ]*[a-z]) *\n")
_REARM_SECONDS = 1.0


@dataclass(frozen=True)
class Beat:
    """Hold the newest sign of life of a process."""

    rank: int
    process: int
    count: int = 0  # of signs so far; largest in a process that waits for others
    updates: int = 0
    phase: str = "starting"  # or `training`, `validating`, another one of `SLOW_PHASES`


class _Pulse:
    """Keep the beats of this process, and write them to a file if there is one."""

    def __init__(self, rank: int, path: Path | None, timeout: float) -> None:
        self._rank, self._timeout = rank, timeout
        self._count, self._updates, self._phase = 0, 0, "starting"
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self._armed = -_REARM_SECONDS

    def beat(self, phase: str | None, updates: int | None) -> None:
        self._count += 1
        self._phase = phase or self._phase
        self._updates = self._updates if updates is None else updates
        if self._file is None:
            self._watch_itself(is_new=phase is not None)
            return
        line = f"{os.getpid()} {self._count} {self._updates} {self._phase}"
        os.pwrite(self._file, f"{line:<{_LINE_BYTES}}\n".encode(), 0)

    def _watch_itself(self, is_new: bool) -> None:
        now = time.monotonic()
        if is_new or now - self._armed >= _REARM_SECONDS:
            self._armed = now
            limit = limit_of(self._phase, self._timeout)
            faulthandler.dump_traceback_later(limit, exit=True, file=_STDERR)


class _Guard(_Pulse):
    """End this process where nobody watches, so that its launcher ends the others.

    Time in which the whole training run is suspended does not count.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        super().__init__(rank, None, timeout)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch_itself(self, is_new: bool) -> None:
        """Do nothing: the thread looks at the count."""

    def _watch(self) -> None:
        count, silent = -1, 0.0
        while silent <= limit_of(self._phase, self._timeout):
            time.sleep(_REARM_SECONDS)
            silent = silent + _REARM_SECONDS if self._count == count else 0.0
            count = self._count
        stopped = ", ".join(map(str, _stopped_siblings()))
        reason = (
            f"a signal has stopped process {stopped} (SIGSTOP or SIGTSTP)"
            if stopped
            else "another rank may hang, or its machine or network is lost"
        )
        text = (
            f"rank {self._rank} (process {os.getpid()}) has made no progress for {silent:.0f} s, "
            f"{self._phase} after update {self._updates}: {reason}. It ends, and its launcher ends "
            f"the others; start the same command again to resume. {TIMEOUT} sets the seconds\n"
        )
        os.write(_STDERR, text.encode())
        faulthandler.dump_traceback(_STDERR)
        os._exit(1)


def _stopped_siblings() -> list[int]:
    """Return the processes of this one's parent that a signal has stopped (Linux)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended
            continue
        state, parent = text.rpartition(")")[2].split()[:2]
        if state == "T" and int(parent) == os.getppid():
            found.append(int(path.parent.name))
    return sorted(found)


_pulse: _Pulse | None = None


def start(rank: int) -> None:
    """Begin to write signs of life, if a launcher or `TIMEOUT` asks for them.

    From here on `DUMP_SIGNAL` and fatal signals write the stacks of all threads to standard error.
    """
    global _pulse
    faulthandler.enable(_STDERR)
    faulthandler.register(DUMP_SIGNAL, _STDERR)
    timeout = float(os.environ.get(TIMEOUT, "0"))
    if timeout > 0:
        folder = os.environ.get(stop_request.DIRECTORY)
        # under SLURM the folder is on a shared disk, and nobody reads it
        watched = stop_request.LAUNCHED in os.environ and folder is not None
        path = _path(Path(folder or "."), rank) if watched else None
        _pulse = _Pulse(rank, path, timeout)
        _pulse.beat("starting", None)


def guard(rank: int) -> None:
    """Watch this process from here on, unless a launcher does or `TIMEOUT` is 0."""
    global _pulse
    timeout = float(os.environ.get(TIMEOUT, DEFAULT_TIMEOUT))
    if _pulse is None and timeout > 0:
        _pulse = _Guard(rank, timeout)


def beat(phase: str | None = None, updates: int | None = None) -> None:
    """Write a sign of life, with a new phase or number of updates, if somebody watches."""
    if _pulse is not None:
        _pulse.beat(phase, updates)


def limit_of(phase: str, timeout: float) -> float:
    """Return the number of seconds without a sign of life after which a process hangs."""
    return max(timeout * SLOW_FACTOR, SLOW_SECONDS) if phase in SLOW_PHASES else timeout


def read_beats(folder: Path) -> list[Beat]:
    """Return the newest beat of each process that writes into a folder, by rank."""
    beats = []
    for path in folder.glob(_path(folder, "*").name):
        # skip a line that is being written
        if found := _LINE.fullmatch(path.read_text(encoding="utf-8")):
            process, count, updates = (int(number) for number in found.groups()[:3])
            rank = int(path.name.rpartition("-")[2])
            beats.append(Beat(rank, process, count, updates, found[4]))
    return sorted(beats, key=lambda beat: beat.rank)


def _path(folder: Path, rank: int | str) -> Path:
    return folder / f"beat-{rank}"
