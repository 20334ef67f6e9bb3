"""The numbers of a training run are in its log only, in the format of the log.

What breaks: with `--log-format simple` or `tqdm` the losses of a training run can be read from text
only, and with `none` they are lost; TensorBoard's files need TensorBoard.
Why: fairseq gives its statistics to a progress bar, which prints them.
What we do: also append them to `metrics.jsonl` in `--save-dir`, a JSON object a line: `tag`
(train_inner, train, or a validation set), `epoch`, `num_updates`, and each statistic as a number.
The first line (tag start) has `parameters` and `updates_per_epoch`, and that of an epoch the peak
memory of the process. `results/record.py` reads the file.
A number that is not finite is null. A resumed run drops the lines after its checkpoint first. At
update 0, the lines of an earlier run are kept in `metrics.before-TIME.jsonl`. A file that no
training run has written is an error, and so is a symbolic link of that name.
Delete when: fairseq writes one.
"""

import json
import logging
import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from typing import Any

import torch
from fairseq.distributed import utils
from fairseq.logging import progress_bar as bars
from fairseq.logging.meters import AverageMeter, StopwatchMeter, TimeMeter
from fairseq_cli import train as training

from highrank_plugins.common.files import open_own, write_text
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
_START = '{"tag": '  # of each line, see `RecordingBar`
_written: list[Path] = []  # files of this process's training


@replaces(training, "train")
def train(stock, cfg, trainer, task, epoch_itr):
    """Train for an epoch, and record its statistics in one process."""
    if not utils.is_master(cfg.distributed_training):
        return stock(cfg, trainer, task, epoch_itr)
    path = Path(cfg.checkpoint.save_dir) / METRICS
    with _recording(path):
        if not getattr(trainer, "highrank_metrics", False):
            drop_later_lines(path, trainer.get_num_updates())
            trainer.highrank_metrics = True
            if not path.is_file():
                _append(path, _sizes(cfg, trainer, epoch_itr))
        return stock(cfg, trainer, task, epoch_itr)


@contextmanager
def _recording(path: Path) -> Iterator[None]:
    _written.append(path)
    try:
        yield
    finally:
        _written.pop()


@replaces(bars, "progress_bar")
def progress_bar(stock, *args, epoch=None, **kwargs):
    """Return a progress bar that also records what a training run prints."""
    bar = stock(*args, epoch=epoch, **kwargs)
    return RecordingBar(bar, _written[-1], epoch) if _written else bar


class RecordingBar(bars.BaseProgressBar):
    """Append statistics to a file, and hand them on to another bar."""

    def __init__(self, bar: bars.BaseProgressBar, path: Path, epoch: int | None) -> None:
        self.wrapped_bar, self.path, self.of_epoch = bar, path, epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wrapped_bar)

    def log(self, stats, tag=None, step=None):
        """Log intermediate statistics."""
        self._append(stats, tag, step)
        self.wrapped_bar.log(stats, tag=tag, step=step)

    def print(self, stats, tag=None, step=None):
        """Print statistics at the end of an epoch."""
        self._append(stats, tag, step)
        self.wrapped_bar.print(stats, tag=tag, step=step)

    def update_config(self, config):
        """Log the options."""
        self.wrapped_bar.update_config(config)

    def _append(self, stats: dict[str, Any], tag: str | None, step: int | None) -> None:
        updates = stats.get("num_updates") if step is None else step
        line = {"tag": tag, "epoch": self.of_epoch} | {
            name: number for name, stat in stats.items() if (number := plain(stat)) is not ...
        }
        line["num_updates"] = updates
        if tag == "train":
            kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            line["peak_memory_gib"] = round(kibibytes / 2**20, 3)
        _append(self.path, line)


def _append(path: Path, line: dict[str, Any]) -> None:
    try:
        with open_own(path, "a") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
    except OSError as error:  # losing the file must not end the training run
        logger.warning("%s: %s; this line was not written", path, error)


def _sizes(cfg: Any, trainer: Any, epoch_itr: Any) -> dict[str, Any]:
    """Return the first line: parameters without experts, as fairseq counts them, and updates."""
    frequencies, epoch = cfg.optimization.update_freq, epoch_itr.next_epoch_idx
    batches = frequencies[min(epoch, len(frequencies)) - 1]
    parameters = (p for p in trainer.get_model().parameters() if not getattr(p, "expert", False))
    return {
        "tag": "start", "epoch": epoch, "num_updates": 0,
        "parameters": sum(p.numel() for p in parameters),
        "updates_per_epoch": math.ceil(len(epoch_itr) / batches),
    }  # fmt: skip


def plain(stat: Any) -> Any:
    """Return a statistic as a number, None if it is not finite, or ... if it is not a number."""
    if isinstance(stat, AverageMeter | TimeMeter):
        stat = stat.avg
    elif isinstance(stat, StopwatchMeter):
        stat = stat.sum
    if torch.is_tensor(stat) and stat.numel() == 1:
        stat = stat.item()
    if not isinstance(stat, Number) or isinstance(stat, complex):
        return ...
    number = stat if isinstance(stat, int) else float(stat)
    return number if math.isfinite(number) else None


def drop_later_lines(path: Path, updates: int) -> None:
    """Drop the lines after an update, and those that an interruption has cut.

    Before the first update, all lines are kept under another name.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if not _START.startswith(line.strip("\0")[: len(_START)]):
            raise UserError(
                f"{path}:{number}: no training run has written this line. Training would replace "
                "the file: move it away, or choose another --save-dir"
            )
    if not updates:
        earlier = path.with_suffix(time.strftime(".before-%Y%m%d-%H%M%S.jsonl"))
        logger.info("The numbers of an earlier training run are kept in %s", earlier)
        path.rename(earlier)
        return
    kept = [line for line in lines if _updates_of(line) <= updates]
    if kept != lines:
        write_text(path, "".join(f"{line}\n" for line in kept))


def _updates_of(line: str) -> float:
    try:
        return float(json.loads(line)["num_updates"])
    except (ValueError, KeyError, TypeError):
        return math.inf
