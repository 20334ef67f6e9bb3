"""Watch each process of a training run, so that one that hangs is named, and define its events.

The trainer calls `beat` at each batch, epoch, validation and checkpoint, and tells each
`TrainingListener`. If no beat comes for long, the process ends itself, and its launcher ends the
others. This module imports nothing heavy, and loads before torch.
"""

import faulthandler
import math
import os
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from highrank_plugins.common.stop_request import launchers_folder
from highrank_plugins.common.user_error import UserError

TIMEOUT = "HIGHRANK_STALL_TIMEOUT"  # seconds; 0 switches the guard off
# loading data and the first update, a new epoch's batches, and a checkpoint take longer than an
# update, and show no signs of life before they end; other ranks wait for them in the next update
SLOW_PHASES = ("starting", "preparing an epoch", "saving", "ending")
_SLOW_FACTOR, _SLOW_SECONDS = 10, 600.0  # the latter is the shortest limit for slow phases
_STDERR = 2  # sys.stderr may be replaced
_LOOK_SECONDS = 1.0


class _Guard:
    """End this process when it makes no progress; time in which it is suspended does not count."""

    def __init__(self, rank: int, timeout: float) -> None:
        self._rank, self._timeout = rank, timeout
        self._count, self._updates, self._phase, self._is_slow = 0, 0, "starting", True
        threading.Thread(target=self._watch, daemon=True).start()

    def beat(self, phase: str | None, updates: int | None) -> None:
        self._count += 1
        self._phase = phase or self._phase
        if phase in SLOW_PHASES:
            self._is_slow = True
        elif updates is not None:
            self._updates, self._is_slow = updates, False

    def _watch(self) -> None:
        count, silent, reason = -1, 0.0, ""
        while not reason:
            time.sleep(_LOOK_SECONDS)
            silent = silent + _LOOK_SECONDS if self._count == count else 0.0
            count = self._count
            stopped = _stopped_processes(self._rank) if silent > self._timeout else ""
            reason = stopped or self._own_reason(silent)
        text = (
            f"rank {self._rank} (process {os.getpid()}) has made no progress for {silent:.0f} s, "
            f"{self._phase} after update {self._updates}: {reason}"
        )
        if folder := launchers_folder():
            with suppress(OSError):  # the launcher has gone
                # the first by name is the cause: what has stopped, or the rank that is behind
                name = f"stall-{0 if stopped else count:012}-{self._rank}"
                Path(folder, name).write_text(text, encoding="utf-8")
        advice = "It ends, and its launcher ends the others; start the same command again to resume"
        os.write(_STDERR, f"{text}. {advice}. {TIMEOUT} sets the seconds\n".encode())
        os.abort()  # faulthandler writes the stacks of all threads

    def _own_reason(self, silent: float) -> str:
        slow = max(self._timeout * _SLOW_FACTOR, _SLOW_SECONDS)
        if silent <= (slow if self._is_slow else self._timeout):
            return ""
        return "it hangs, or waits for another rank that does, or whose machine or network is lost"


def _stopped_processes(rank: int) -> str:
    """Return which ranks of this machine a signal has stopped, in words; empty if none (Linux)."""
    name = next((n for n in ("RANK", "SLURM_PROCID") if os.environ.get(n) == str(rank)), "RANK")
    its_rank = re.compile(rf"(?:^|\0){name}=(\d+)\0".encode())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state == "T" and int(parent) in (os.getpid(), os.getppid()):
                known = its_rank.search((folder / "environ").read_bytes())
                process = f"process {folder.name}"
                found.append(f"rank {int(known[1])} ({process})" if known else process)
    return f"a signal has stopped {', '.join(found)} (SIGSTOP or SIGTSTP)" if found else ""


_guard: _Guard | None = None


def guard(rank: int) -> None:
    """Watch this process from here on, unless it is watched already or `TIMEOUT` is 0."""
    global _guard
    faulthandler.enable(_STDERR)
    given = os.environ.get(TIMEOUT, "600")
    try:
        timeout = float(given)
    except ValueError:
        timeout = math.nan
    if math.isnan(timeout):
        raise UserError(f"{TIMEOUT}={given}: expected a number of seconds; 0 watches nothing")
    if _guard is None and timeout > 0:
        if folder := launchers_folder():
            for before_restart in Path(folder).glob(f"stall-*-{rank}"):
                before_restart.unlink()
        _guard = _Guard(rank, timeout)


def beat(phase: str | None = None, updates: int | None = None) -> None:
    """Show a sign of life: the phase that begins now, and the number of updates, if they change."""
    if _guard is not None:
        _guard.beat(phase, updates)


def stall(folder: Path) -> str:
    """Return the line of the rank that hangs, which the guards have left in a launcher's folder."""
    notes = sorted(folder.glob("stall-*"))
    return notes[0].read_text(encoding="utf-8") if notes else ""


class TrainingListener:
    """Receive fairseq's training events in every process: base of optimizers, tasks and models."""

    monitor: "TrainingListener | None" = None  # also listens, but only in the first process

    def function_options(self) -> Mapping[str, Any]:
        """Return the model options that each checkpoint must hold, wherever they were set."""
        return {}

    def check_saved_options(self, options: Mapping[str, Any]) -> None:
        """Compare the model options of a checkpoint with ours, before it is loaded."""

    def check_loaded(self) -> None:
        """Refuse to evaluate or teach with what a checkpoint has left without values."""

    def before_epoch(self, epoch: int) -> None:
        """Prepare for an epoch of training, counted from 1."""

    def before_update(self, updates: int) -> None:
        """Prepare for the update after `updates` ones, or for the repetition of a failed one."""

    def after_update(self, updates: int, logdir: str | None) -> None:
        """React to an update; `updates` is as before if it failed, `logdir` TensorBoard's."""

    def before_validation(self) -> None:
        """Prepare for a validation."""

    def after_epoch(self, loss: float) -> None:
        """React to the validation loss of an epoch, before the checkpoint is written."""

    def before_save(self) -> None:
        """Prepare what a checkpoint will hold."""

    @property
    def finished(self) -> bool:
        """Whether the training run should end."""
        return False


def listening(*candidates: object) -> list[TrainingListener]:
    return [candidate for candidate in candidates if isinstance(candidate, TrainingListener)]
