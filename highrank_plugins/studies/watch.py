"""Start the recipes of members, say in one line how far they are, and how each has ended."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from highrank_plugins.common import stop_request
from highrank_plugins.common.files import open_own, write_text
from highrank_plugins.results.record import RESULTS
from highrank_plugins.studies.members import DIVERGED, PreparedMember

GPU = "CUDA_VISIBLE_DEVICES"
WAIT = 0.05  # seconds between two polls of the running members
# messages of fairseq and our layers about a training run whose loss is NaN
_DIVERGED = re.compile(
    r"FloatingPointError|Minimum loss scale reached|\b(loss|gradient)s?\b.*\bnan\b", re.IGNORECASE
)
USAGE = 2  # exit code of a recipe that refuses its options or text
_REFUSAL = re.compile(r"^(?:highrank: |[-\d]{10} [:\d]{8} error: )(.+)", re.MULTILINE)
_EVERY = {True: 2.0, False: 60.0}  # seconds between two lines, on a terminal and in a log
_STAGE = re.compile(r" stage (\d) (\S+): (?!already|done)")
_TAIL = 20_000  # bytes at the end of a log that are read

Environment = Mapping[str, str]


@dataclass
class Running:
    """Hold a started member; its output begins at `begin` in the log."""

    member: PreparedMember
    environment: Environment
    process: subprocess.Popen[bytes]
    log: Path
    begin: int


def _tail(path: Path, begin: int = 0) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL))
        return file.read().decode(errors="replace")


class Watch:
    """Show the line of a study again and again: in place on a terminal, else each minute."""

    def __init__(self, total: int, say: Callable[[str], None], stream: Any = None) -> None:
        self._total, self._say, self._stream = total, say, stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._last = time.monotonic()

    def tell(self, line: str) -> None:
        self._clear()
        self._say(line)

    def _clear(self) -> None:
        if self._on_terminal:
            self._stream.write("\r\x1b[K")

    def show(self, running: Sequence[Running], waiting: int) -> None:
        if time.monotonic() < self._last + _EVERY[self._on_terminal]:
            return
        self._last = time.monotonic()
        done = self._total - waiting - len(running)
        parts = [f"{done} of {self._total} done"]
        for one in running:
            stages = _STAGE.findall(_tail(one.log))
            at = f"stage {' '.join(stages[-1])}" if stages else "starts"
            parts.append(f"{one.member.name}: {at}")
        self._clear()
        self._stream.write(", ".join(parts) + ("" if self._on_terminal else "\n"))
        self._stream.flush()


def start(
    member: PreparedMember, free: list[Environment], elsewhere: Sequence[PreparedMember], logs: Path
) -> Running:
    """Start a member in one of the free environments, whose GPU no other process has."""
    notes = [other.note("gpu") for other in elsewhere]
    used = [note.read_text() for note in notes if note.is_file()]
    environment = next((one for one in free if one.get(GPU) not in used), free[0])
    free.remove(environment)
    log = logs / f"{member.name}.log"
    member.note("failed").unlink(missing_ok=True)
    if GPU in environment:
        write_text(member.note("gpu"), environment[GPU])
    begin = log.stat().st_size if log.exists() else 0
    with open_own(log, "ab") as file:
        process = subprocess.Popen(
            member.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # one process group, which is killed together
        )
    return Running(member, environment, process, log, begin)


def ended(one: Running) -> str:
    """Record how a recipe ended, and return it."""
    member, code = one.member, one.process.returncode
    tail = _tail(one.log, one.begin)
    what = f"failed with exit code {code}" if code else f"has written no {RESULTS}"
    if code == 0 and member.record.is_file():
        try:
            member.metrics()
        except ValueError:
            what = f"has written a damaged {RESULTS}"
        else:
            write_text(member.note("done"), member.name + "\n")
            return member.problem() or "done"
    elif code == stop_request.REQUEUE:
        what = "stopped; run the same command to resume it"
    elif code == USAGE and (said := _REFUSAL.findall(tail)):
        what = f"refused: {said[-1]}"
    elif _DIVERGED.search(tail):
        what = DIVERGED
    write_text(member.note("failed"), what + "\n")
    return what


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask recipes to stop, and wait: their training runs save a checkpoint first."""
    for process in processes:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        process.wait()
        with suppress(ProcessLookupError):  # until the last one of its group has ended
            while True:
                os.killpg(process.pid, 0)
                time.sleep(WAIT)


def in_use(run_dir: Path) -> bool:
    lock = run_dir / ".lock"
    if lock.is_file():
        with open_own(lock, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as the flock of the recipes
            except BlockingIOError:
                return True
    return False
