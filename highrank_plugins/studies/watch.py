"""Say in one line how far the running members of a study are: stage, share, and time left."""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from highrank_plugins.studies.members import PreparedMember

_EVERY = {True: 2.0, False: 60.0}  # seconds between two lines, on a terminal and in a log
_STAGE = re.compile(r" stage (\d) (\S+): (?!already|done)")
_TAIL = 20_000  # bytes of a log or of the numbers of a training run


def share_trained(run_dir: Path) -> float | None:
    """Return the share of a training run's updates that are done; None before the first numbers."""
    numbers = _tail(run_dir / "train" / "metrics.jsonl").splitlines()
    try:
        last = json.loads(numbers[-1])
        train = yaml.safe_load((run_dir / "config.yaml").read_text(encoding="utf-8"))["train"]
    except (IndexError, ValueError, OSError):  # not there, or half written
        return None
    if "max_update" in train:
        return min(1.0, last["num_updates"] / train["max_update"])
    return min(1.0, last["epoch"] / train["max_epoch"]) if "max_epoch" in train else None


def _tail(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        return file.read().decode(errors="replace")


class Watch:
    """Show the line of a study again and again: in place on a terminal, else each minute."""

    def __init__(self, total: int, say: Callable[[str], None], stream: Any = None) -> None:
        self._total, self._say, self._stream = total, say, stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._last = time.monotonic()
        self._first: dict[str, tuple[float, float]] = {}  # of a member: time and share

    def tell(self, line: str) -> None:
        """Say something else, in place of the line."""
        self._clear()
        self._say(line)

    def _clear(self) -> None:
        if self._on_terminal:
            self._stream.write("\r\x1b[K")

    def show(self, running: Sequence[tuple[PreparedMember, Path]], waiting: int) -> None:
        """Show the running members, each with its log, if it is time to."""
        if time.monotonic() < self._last + _EVERY[self._on_terminal]:
            return
        self._last = time.monotonic()
        done = self._total - waiting - len(running)
        parts = [f"{done} of {self._total} done", *(self._member(m, log) for m, log in running)]
        self._clear()
        self._stream.write(", ".join(parts) + ("" if self._on_terminal else "\n"))
        self._stream.flush()

    def _member(self, member: PreparedMember, log: Path) -> str:
        stages = _STAGE.findall(_tail(log))
        said = (
            f"{member.name}: stage {' '.join(stages[-1])}" if stages else f"{member.name}: starts"
        )
        share = share_trained(member.run_dir)
        if share is None or not stages or stages[-1][0] not in "34":
            return said
        began, first = self._first.setdefault(member.name, (self._last, share))
        said = f"{said}, {share:.0%}"
        if share <= first or share == 1:
            return said
        left = (self._last - began) / (share - first) * (1 - share)
        return f"{said}, {timedelta(seconds=round(left))} left in training"
