"""Read the log of fairseq-train (`--log-format json`): as numbers, and as short lines."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

_ENTRY = re.compile(r"[^|]*\| INFO \| (train_inner|train|valid) \| (\{.*\})\s*")
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+) ")
_MEMORY = re.compile(r"peak memory of a process: ([\d.]+) GiB")  # `memory_line`
# how a message starts: fairseq-train's format, Python's default before it, a traceback, or the line
# with which a command or the launcher ends
_START = re.compile(
    r"[-\d]+ [:\d]+ \| (\w+) \||([A-Z]+):[\w.]+:|(?:\[rank\d+\]: )?Traceback"
    r"|fairseq-[\w-]+: error: |highrank: "
)


@dataclass(frozen=True)
class Entry:
    """Hold one line of numbers. `kind`: train_inner (some updates), train (an epoch), valid."""

    kind: str
    stats: dict[str, Any]

    def number(self, name: str) -> float:
        return float(self.stats[name])


def parse(line: str) -> Entry | None:
    """Return the numbers in a line of the log, if it has any."""
    match = _ENTRY.fullmatch(line)
    return Entry(match[1], json.loads(match[2])) if match else None


class LoggedTraining(NamedTuple):
    """Hold a training run's command, and the result of `summarise` for its log."""

    command: str
    summary: dict[str, float]


# train.log of a recipe lacks what SLURM's job or another node has printed
_LOGS = ("train.log", "logs/rank0.log")


def read_training(folder: Path) -> LoggedTraining:
    """Read a training run that a recipe has run: `command.sh` and the logs of its `--save-dir`."""
    logs = [path for name in _LOGS if (path := folder / name).exists()] or [folder / _LOGS[0]]
    lines = (line for path in logs for line in path.read_text(encoding="utf-8").splitlines())
    command = (folder / "command.sh").read_text(encoding="utf-8").rstrip()
    names = ", ".join(map(str, logs))
    try:
        summary = summarise(lines)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{names}: a line of numbers is damaged: {error!r}") from None
    if "updates" not in summary:
        raise ValueError(
            f"{names}: no numbers of a training run; give the folder of one that was run with "
            "--log-format json"
        )
    if bad := [f"{name} is {value}" for name, value in summary.items() if not isfinite(value)]:
        raise ValueError(f"{names}: {', '.join(bad)}: the training run has diverged")
    return LoggedTraining(command, summary)


def summarise(lines: Iterable[str]) -> dict[str, float]:
    """Return updates, epochs, seconds, median words per second, losses, parameters and memory.

    `seconds_per_epoch` is the median from one epoch's end to the next: training and validation.
    That of a single whole epoch is from the start of the run to the epoch's end.
    After a resume the log has some lines twice; the later ones count.
    """
    numbers: dict[str, float] = {}
    epochs: dict[int, Entry] = {}
    losses: dict[int, float] = {}
    last: dict[str, float] = {}
    updates_per_epoch = inf
    for line in lines:
        entry = parse(line)
        if entry is None:
            _note_numbers(line, numbers)
            continue
        if entry.kind == "train_inner" and entry.number("update") > 0:
            updates_per_epoch = entry.number("num_updates") / entry.number("update")
        if entry.kind == "train":
            epochs[int(entry.stats["epoch"])] = entry
        elif entry.kind == "valid":
            losses[int(entry.stats["valid_num_updates"])] = entry.number("valid_loss")
            continue
        prefix = "train_" if entry.kind == "train" else ""
        updates = entry.number(f"{prefix}num_updates")
        if updates >= last.get("updates", 0):  # several logs may overlap
            last = {"updates": updates, "wall_seconds": entry.number(f"{prefix}wall")}
    speeds = [entry.number("train_wps") for entry in epochs.values()]
    summary = {**last, "epochs": max(epochs, default=0)}
    if speeds:
        summary["words_per_second"] = round(median(speeds), 1)
    if seconds := _epoch_seconds(epochs, updates_per_epoch):
        summary["seconds_per_epoch"] = round(median(seconds), 1)
    if losses:
        summary["valid_loss"] = losses[max(losses)]
        summary["best_valid_loss"] = min(losses.values())
    return summary | numbers


def _epoch_seconds(epochs: dict[int, Entry], updates_per_epoch: float) -> list[float]:
    ends = {number: entry.number("train_wall") for number, entry in epochs.items()}
    if len(epochs) == 1:
        (only,) = epochs.values()
        # fairseq rounds the part of an epoch to 1/1000; a run may end within its first epoch
        is_whole = only.number("train_num_updates") > 0.99 * updates_per_epoch
        return list(ends.values()) if is_whole else []
    return [
        end - ends[number - 1]
        for number, end in ends.items()
        if number - 1 in ends and end > ends[number - 1]
    ]


def memory_line(kibibytes: int) -> str:
    """Return the line of a log that says how much memory the largest process took."""
    return f"peak memory of a process: {kibibytes / 2**20:.3f} GiB\n"


def _note_numbers(line: str, numbers: dict[str, float]) -> None:
    if found := _PARAMETERS.search(line):
        numbers["parameters"] = int(found[1].replace(",", ""))
    elif found := _MEMORY.match(line):
        numbers["peak_memory_gib"] = max(float(found[1]), numbers.get("peak_memory_gib", 0))


def digest(lines: Iterable[str], max_update: float, max_epoch: float) -> Iterator[str]:
    """Yield the lines about a training run in progress that matter to a person.

    Numbers become a short line with the time left until `max_update` or `max_epoch` (infinite: no
    such bound). Warnings and errors are passed on; fairseq's other messages stay in the log.
    """
    shown = True
    for line in lines:
        entry = parse(line)
        start = _START.match(line)
        if start:  # other lines belong to the message before
            shown = "INFO" not in start.groups()
        if entry is None:
            if shown:
                yield line.rstrip("\n")
        elif entry.kind == "train_inner":
            yield _progress(entry, max_update, max_epoch)
        elif entry.kind == "valid":
            yield f"{_place(entry, 'valid_')}: validation {_quality(entry, 'valid_')}"


def _progress(entry: Entry, max_update: float, max_epoch: float) -> str:
    done = max(entry.number("num_updates") / max_update, entry.number("update") / max_epoch)
    text = f"{_place(entry)}: {_quality(entry)}, {entry.number('wps'):,.0f} words/s"
    if done == 0:
        return text
    left = entry.number("wall") * (1 - done) / done
    return f"{text}, {done:.0%} done, {_clock(max(left, 0))} left"


def _place(entry: Entry, prefix: str = "") -> str:
    return f"epoch {entry.stats['epoch']}, update {entry.stats[f'{prefix}num_updates']}"


def _quality(entry: Entry, prefix: str = "") -> str:
    """Return the loss, and the perplexity if the criterion gives one."""
    names = {"loss": "loss", "ppl": "perplexity"}
    shown = {text: entry.stats.get(prefix + name) for name, text in names.items()}
    return ", ".join(f"{text} {value}" for text, value in shown.items() if value is not None)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
