"""Watch the processes of this machine, and end one that hangs, which ends the others."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from highrank_plugins.common import peers
from highrank_plugins.common.heartbeat import DUMP_SIGNAL, Beat, limit_of, read_beats
from highrank_plugins.training.launch import cause

LOOK_SECONDS = 1.0
DUMP_SECONDS = 2.0  # seconds to write stacks
AGENT_SECONDS = 10.0  # seconds for an agent to end after its processes
RESTART_SECONDS = 5.0  # seconds for an agent to replace processes that have ended
ENDED = ("", "Z")  # states of a process that has ended
STOPPED = "T"  # state of a process in /proc that SIGSTOP has stopped


class Agent(Protocol):
    """Supervise the processes of this machine: torchrun with SIGINT only, or `LocalRanks`."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to it."""

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code."""


@dataclass(frozen=True)
class Stall:
    """Describe a process that hangs, or the first of several that do.

    Attributes:
        seconds: since its last sign of life.
        state: the letter of its state in /proc.
        is_behind: all others of this machine have come further.
    """

    beat: Beat
    seconds: float
    state: str
    is_behind: bool

    def describe(self) -> str:
        """Return a description of the process that hangs, where, and the evidence."""
        beat = self.beat
        text = (
            f"rank {beat.rank} (process {beat.process}) has shown no sign of life for "
            f"{self.seconds:.0f} s, {beat.phase} after update {beat.updates}"
        )
        if self.state == STOPPED:
            return f"{text}: a signal has stopped it (SIGSTOP or SIGTSTP)"
        if self.state == "D":
            text += " and waits for a disk"
        if not self.is_behind:
            text += (
                "; other ranks here have stopped at the same update: all may be waiting for "
                "another node, if there is one"
            )
        return text


class StallWatch:
    """Find out whether the processes that write beats into a folder hang.

    Args:
        timeout: seconds without a sign of life of any of them; see `limit_of`.
    """

    def __init__(self, folder: Path, timeout: float) -> None:
        self._folder, self._timeout = folder, timeout
        self._clock, self._looked = 0.0, time.monotonic()
        self._newest: dict[int, tuple[Beat, float]] = {}

    def look(self) -> Stall | None:
        """Read all beats; return the process that hangs, if any. Call it every second."""
        now = time.monotonic()
        # at most a second: this process may have been stopped as well, or the machine suspended
        self._clock += min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        for beat in read_beats(self._folder):
            if beat.rank not in self._newest or self._newest[beat.rank][0] != beat:
                self._newest[beat.rank] = beat, self._clock
        silent = {beat: self._clock - since for beat, since in self._newest.values()}
        if not silent or min(silent.values()) <= self._timeout:
            return None
        stopped = [beat for beat in silent if _state(beat.process) == STOPPED]
        first = min(stopped or silent, key=lambda beat: beat.count)
        if not stopped and silent[first] <= limit_of(first.phase, self._timeout):
            return None
        is_behind = len(silent) == 1 or sum(b.count == first.count for b in silent) == 1
        return Stall(first, silent[first], _state(first.process), is_behind)

    def forget(self) -> None:
        """Forget all processes: new ones replace them."""
        for rank in self._newest:
            (self._folder / f"beat-{rank}").unlink(missing_ok=True)
        self._newest.clear()


class WatchedAgent:
    """Watch an agent whose processes are ended when one of them hangs.

    It kills the process that hangs; the agent ends the others and restarts all. Where no restart is
    left, or another machine is lost, it kills the agent as well, if need be: torchrun would wait
    for that machine, and for a store that is on it.

    Args:
        folder: where processes write beats, and the cause is kept (`cause.py`).
        timeout: see `StallWatch`.
        say: receives messages.
        restarts: how often the agent restarts all.
        meeting: what the agent waits for before it restarts all, in words; empty on one machine.
    """

    def __init__(
        self,
        agent: Agent,
        folder: Path,
        timeout: float,
        say: Callable[[str], object],
        restarts: int = 0,
        meeting: str = "",
    ) -> None:
        self._agent, self._folder, self._say = agent, folder, say
        self._watch, self._timeout = StallWatch(folder, timeout), timeout
        self._meeting = meeting
        self._ended: float | None = None  # when all processes of this machine had ended
        self._waits = False
        self._restarts, self._last = restarts, float("inf")
        # machines behind a firewall, say; None until all have met
        self._never_answered: set[str] | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal to the agent."""
        self._agent.send_signal(number)

    def wait(self, timeout: float | None = None) -> int:
        """Return the agent's exit code."""
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            left = end - time.monotonic()
            try:
                return self._agent.wait(max(0.0, min(left, LOOK_SECONDS)))
            except subprocess.TimeoutExpired:
                if left <= LOOK_SECONDS:
                    raise
            if self._never_answered is None and peers.is_noted(self._folder):
                self._never_answered = set(peers.silent(self._folder))
            stall = None if self._waits_for_others() else self._watch.look()
            if stall is not None:
                self._end(stall)
                self._restarts -= 1
                if self._cannot_restart():
                    self._last = time.monotonic() + AGENT_SECONDS
            elif time.monotonic() > self._last:
                if self._cannot_restart():
                    self._agent.send_signal(signal.SIGKILL)
                self._last = float("inf")

    def _waits_for_others(self) -> bool:
        """Whether all processes here have ended, and the agent waits for other launchers.

        Says so once. A machine that no longer answers is waited for until the stall timeout.
        """
        beats = read_beats(self._folder)
        if not self._meeting or self._never_answered is None:
            return False
        if any(_state(beat.process) not in ENDED for beat in beats):
            self._ended, self._waits = None, False
            return False
        now = time.monotonic()
        self._ended = now if self._ended is None else self._ended
        if not self._waits and now - self._ended > RESTART_SECONDS:
            self._waits = True
            self._watch.forget()
            if not self._cannot_restart():
                self._say(f"all processes of this machine have ended. {self._meeting}")
        elif self._waits and now - self._ended > self._timeout and self._last == float("inf"):
            self._ended = now
            if self._cannot_restart():
                self._last = now + AGENT_SECONDS
        return self._waits

    def _cannot_restart(self) -> bool:
        """Whether no restart is left, or a machine that once answered does not."""
        if self._restarts < 0:
            return True
        return bool({*peers.silent(self._folder)} - (self._never_answered or set()))

    def _end(self, stall: Stall) -> None:
        self._say(f"{stall.describe()}; writing the stacks of all to their logs")
        processes = [beat.process for beat in read_beats(self._folder)]
        _send(processes, DUMP_SIGNAL)
        time.sleep(DUMP_SECONDS)
        beat = stall.beat
        cause.note(self._folder, cause.Cause(beat.rank, -signal.SIGABRT, stall.describe()))
        self._watch.forget()  # forget them before the agent starts new ones
        # it writes its own stack when it continues, then aborts
        _send([beat.process], signal.SIGABRT)
        _send([beat.process], signal.SIGCONT)
        time.sleep(DUMP_SECONDS)
        _send([beat.process], signal.SIGKILL)
        time.sleep(DUMP_SECONDS)  # lets the others report that they have lost it
        _send(processes, signal.SIGKILL)


def _state(process: int) -> str:
    """Return the state letter of a process in /proc; empty if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def _send(processes: Iterable[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
