"""Read metrics.jsonl of a training run: as the numbers of a record, and as short lines.

`hooks/metrics_file.py` writes it, an object a line: first the sizes of the run (tag `start`), then
numbers of some updates (train_inner), of an epoch (train) and of each validation (valid).
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

METRICS = "metrics.jsonl"
Entry = dict[str, Any]
# how a message starts: fairseq-train's format, Python's default before it, a traceback, or the line
# with which a command or the launcher ends
_MESSAGE = re.compile(
    r"[-\d]+ [:\d]+ \| (\w+) \||([A-Z]+):[\w.]+:|(?:\[rank\d+\]: )?Traceback"
    r"|fairseq-[\w-]+: error: |highrank: "
)


class RecordedTraining(NamedTuple):
    """Hold a training run's command, and the result of `summarise` for its numbers."""

    command: str
    summary: dict[str, float]


def read_training(folder: Path) -> RecordedTraining:
    """Read a training run that a recipe has run: `command.sh` and the numbers in `--save-dir`."""
    path = folder / METRICS
    command = (folder / "command.sh").read_text(encoding="utf-8").rstrip()
    try:
        summary = summarise([dict(json.loads(line)) for line in path.read_bytes().splitlines()])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: a line of numbers is damaged: {error!r}") from None
    if "updates" not in summary:
        raise ValueError(f"{path}: no numbers of a training run; give the folder of one")
    if bad := [f"{name} is {value}" for name, value in summary.items() if not isfinite(value)]:
        raise ValueError(f"{path}: {', '.join(bad)}: the training run has diverged")
    return RecordedTraining(command, summary)


def summarise(entries: Sequence[Entry]) -> dict[str, float]:
    """Return updates, epochs, seconds, median words per second, losses, parameters and memory.

    `seconds_per_epoch` is the median from one epoch's end to the next: training and validation.
    That of a single whole epoch is from the start of the run to the epoch's end.
    """
    start = next((entry for entry in entries if entry["tag"] == "start"), {})
    trained = [entry for entry in entries if entry["tag"] in ("train_inner", "train")]
    epochs = {int(entry["epoch"]): entry for entry in trained if entry["tag"] == "train"}
    losses = [_number(entry, "loss") for entry in entries if entry["tag"] == "valid"]
    if not trained:
        return {}
    last = trained[-1]
    summary = {"updates": _number(last, "num_updates"), "wall_seconds": _number(last, "wall")}
    summary["epochs"] = max(epochs, default=0)
    if epochs:
        speeds = [_number(entry, "wps") for entry in epochs.values()]
        summary["words_per_second"] = round(median(speeds), 1)
    ends = {number: _number(entry, "wall") for number, entry in epochs.items()}
    steps = [(ends[b] - ends[a]) for a, b in pairwise(ends) if b == a + 1 and ends[b] > ends[a]]
    first, *more = [*epochs.values(), {"num_updates": 0}]
    if len(more) == 1 and first["num_updates"] >= start.get("updates_per_epoch", inf):
        steps = list(ends.values())  # a run may end within its first epoch
    if steps:
        summary["seconds_per_epoch"] = round(median(steps), 1)
    if losses:
        summary |= {"valid_loss": losses[-1], "best_valid_loss": min(losses)}
    if "parameters" in start:
        summary["parameters"] = start["parameters"]
    if memory := [entry["peak_memory_gib"] for entry in trained if "peak_memory_gib" in entry]:
        summary["peak_memory_gib"] = max(memory)
    return summary


def _number(entry: Entry, name: str) -> float:
    """Return a number as fairseq prints it, to three digits; the file has null for NaN."""
    return nan if entry[name] is None else round(float(entry[name]), 3)


def messages(lines: Iterable[str]) -> Iterator[str | None]:
    """Yield what matters to a person in a log: warnings and errors; None for any other line."""
    shown = True
    for line in lines:
        if start := _MESSAGE.match(line):  # other lines belong to the message before
            shown = "INFO" not in start.groups()
        yield line.rstrip("\n") if shown else None


class Progress:
    """Read what a training run appends to metrics.jsonl, as short lines for people.

    They tell the time left until `max_update` or `max_epoch` (infinite: no such bound).
    """

    def __init__(self, path: Path, max_update: float, max_epoch: float) -> None:
        self._path, self._updates, self._epochs = path, max_update, max_epoch
        self._per_epoch = inf
        found = path.stat() if path.is_file() else None
        self._file = None if found is None else found.st_ino
        self._position = 0 if found is None else found.st_size

    def new_lines(self) -> Iterator[str]:
        """Yield a line for each entry that has been written since the last call."""
        if not self._path.is_file():
            return
        found = self._path.stat()
        if self._file not in (None, found.st_ino):  # written again, without lines of a lost part
            self._position = found.st_size
        self._file = found.st_ino
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if line.endswith(b"\n"):  # the end of the last one may be missing yet
                    self._position += len(line)
                    yield from self._said(json.loads(line))

    def _said(self, entry: Entry) -> Iterator[str]:
        place = f"epoch {entry['epoch']}, update {entry['num_updates']}"
        names = {"loss": "loss", "ppl": "perplexity"}
        known = {text: entry.get(name) for name, text in names.items()}
        quality = ", ".join(f"{text} {value}" for text, value in known.items() if value is not None)
        if entry["tag"] == "start":
            self._per_epoch = entry["updates_per_epoch"]
        elif entry["tag"] == "train_inner":
            yield f"{place}: {quality}, {entry['wps'] or 0:,.0f} words/s{self._left(entry)}"
        elif entry["tag"] == "valid":
            yield f"{place}: validation {quality}"

    def _left(self, entry: Entry) -> str:
        updates = entry["num_updates"]
        done = max(updates / self._updates, updates / self._per_epoch / self._epochs)
        if done == 0:
            return ""
        minutes, seconds = divmod(round(max(entry["wall"] * (1 - done) / done, 0)), 60)
        hours, minutes = divmod(minutes, 60)
        return f", {done:.0%} done, {hours}:{minutes:02}:{seconds:02} left"
