"""Write signs of life from a training run's processes, so that the launcher notices a hang.

Each process keeps one line in a file of the launcher's private folder. Where no launcher watches
(under srun), the process watches itself. This module imports nothing heavy, and loads before torch.
"""

import faulthandler
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common import stop_request

TIMEOUT = "HIGHRANK_STALL_TIMEOUT"  # seconds; 0 switches the watch off
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
    """Hold the newest sign of life of a process.

    Attributes:
        count: number of signs so far; largest in a process that waits for others.
        updates: number of updates done.
        phase: what the process does, `training` or `validating` or one of `SLOW_PHASES`.
    """

    rank: int
    process: int
    count: int = 0
    updates: int = 0
    phase: str = "starting"


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


def beat(phase: str | None = None, updates: int | None = None) -> None:
    """Write a sign of life; do nothing in a process that nobody watches.

    Args:
        phase: what begins now (default: as before).
        updates: number of updates done (default: as before).
    """
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
