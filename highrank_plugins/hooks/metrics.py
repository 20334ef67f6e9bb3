"""Record the numbers of a training run in a file.

What breaks: the losses can be read from the log's text only, and with `--log-format none` they are
lost. Why: fairseq gives its statistics to a progress bar. What we do: append them to
`metrics.jsonl` in `--save-dir`, a JSON object a line: `tag` (train_inner, train, or a validation
set), `epoch`, `num_updates`, and each statistic as a number, or null if it is not finite. The first
line (tag start) has sizes, and that of an epoch the peak memory and, of each layer, the
implementation of its loss. `results/record.py` reads the file. A resumed run drops the lines after
its checkpoint. Delete when: fairseq writes one.
"""

import json
import logging
import math
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from numbers import Number
from pathlib import Path
from typing import Any

import torch
from fairseq.distributed import utils
from fairseq.logging import progress_bar as bars
from fairseq.logging.meters import AverageMeter, StopwatchMeter, TimeMeter

from highrank_plugins.common.files import open_own, write_text
from highrank_plugins.common.names import layer_name
from highrank_plugins.common.patching import by_name, replaces
from highrank_plugins.common.provenance import ran

logger = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
_START = '{"tag": '  # of each line, see `RecordingBar`
_written: list[Path] = []  # files of this process's training
_starts: dict[Path, dict[str, Any]] = {}  # first lines, until the first numbers come


@contextmanager
def recording(cfg: Any, trainer: Any, epoch_itr: Any, is_first: bool) -> Iterator[None]:
    """Record what fairseq prints of an epoch, perhaps the first one, in the first process."""
    if not utils.is_master(cfg.distributed_training):
        yield
        return
    path = Path(cfg.checkpoint.save_dir) / METRICS
    _written.append(path)
    try:
        if is_first:
            # lines of another run would be mixed with those of a checkpoint from elsewhere
            _drop_later_lines(path, trainer.get_num_updates() if trainer.resumes_own else 0)
            if not path.is_file():
                _starts[path] = _sizes(cfg, trainer, epoch_itr)
        yield
    finally:
        _starts.pop(_written.pop(), None)


@replaces(bars, "progress_bar")
def progress_bar(stock: Callable, *args: Any, **kwargs: Any) -> Any:
    bar, epoch = stock(*args, **kwargs), by_name(stock, *args, **kwargs).get("epoch")
    return RecordingBar(bar, _written[-1], epoch) if _written else bar


class RecordingBar(bars.BaseProgressBar):
    """Append statistics to a file, and hand them on to another bar."""

    def __init__(self, bar: bars.BaseProgressBar, path: Path, epoch: int | None) -> None:
        self.wrapped_bar, self.path, self.of_epoch = bar, path, epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wrapped_bar)

    def log(self, stats: dict[str, Any], tag: str | None = None, step: int | None = None) -> None:
        self._append(stats, tag, step)
        self.wrapped_bar.log(stats, tag=tag, step=step)

    def print(self, stats: dict[str, Any], tag: str | None = None, step: int | None = None) -> None:
        self._append(stats, tag, step)
        self.wrapped_bar.print(stats, tag=tag, step=step)

    def update_config(self, config: Any) -> None:
        self.wrapped_bar.update_config(config)

    def _append(self, stats: dict[str, Any], tag: str | None, step: int | None) -> None:
        line = {"tag": tag, "epoch": self.of_epoch}
        line |= {name: found for name, stat in stats.items() if (found := plain(stat)) is not ...}
        line["num_updates"] = stats.get("num_updates") if step is None else step
        if tag == "train":
            kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            line["peak_memory_gib"] = round(kibibytes / 2**20, 3)
            line["implementations"] = {layer_name(head): impl for head, impl in ran.items()}
        start = _starts.pop(self.path, None)
        try:
            with open_own(self.path, "a") as file:
                for each in (start, line) if start else (line,):
                    file.write(json.dumps(each, allow_nan=False) + "\n")
        except OSError as error:  # losing the file must not end the training run
            logger.warning("%s: %s; this line was not written", self.path, error)


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
    if isinstance(stat, AverageMeter | TimeMeter | StopwatchMeter):
        stat = stat.sum if isinstance(stat, StopwatchMeter) else stat.avg
    if torch.is_tensor(stat) and stat.numel() == 1:
        stat = stat.item()
    if not isinstance(stat, Number) or isinstance(stat, complex):
        return ...
    number = stat if isinstance(stat, int) else float(stat)
    return number if math.isfinite(number) else None


def _drop_later_lines(path: Path, updates: int) -> None:
    """Drop the lines after an update; keep those of other runs and users under another name."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    ours = [line for line in lines if _START.startswith(line.strip("\0")[: len(_START)])]
    if not updates or ours != lines:
        earlier = path.with_suffix(time.strftime(".before-%Y%m%d-%H%M%S.jsonl"))
        logger.info("What was in %s is kept in %s", path, earlier)
        path.rename(earlier)
    if not updates:
        return
    kept = ""
    for line in ours:
        with suppress(ValueError, KeyError, TypeError):  # an interruption has cut it
            if float(json.loads(line)["num_updates"]) <= updates:
                kept += f"{line}\n"
    if not kept:
        path.unlink(missing_ok=True)
    elif kept.splitlines() != lines:
        write_text(path, kept)
