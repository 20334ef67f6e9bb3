"""The log of a training run is at the wrong level, in the wrong place, and mostly for developers.

What breaks: every tool but fairseq-train prints the debugging messages of all libraries, as
`INFO:name:message`. In a terminal, a line that is logged during an epoch continues the line of the
bar. Before its first update a run prints every option of fairseq, every layer and tied tensor, in
which sizes and numbers of parameters are lost. Each checkpoint is announced three times.
Why: `import fairseq` calls `logging.basicConfig(level=DEBUG)` in a model of wav2vec before tools
set level and format. Its loggers know nothing of tqdm's bars, and log at the level INFO.
What we do: take DEBUG back to `$LOGLEVEL`, INFO if unset, with the time in each line. Clear the
bars before each line. Leave developers' lines out, unless `LOGLEVEL=DEBUG`.
Delete when: that line of wav2vec is gone, and fairseq logs through tqdm and at the level DEBUG.
"""

import logging
import os
import re
import sys
from argparse import Namespace
from collections.abc import Mapping

import fairseq.models  # noqa: F401  (importing it sets the level that is changed below)
from torch import nn

FORMAT = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
_COMMANDS = ("preprocess", "generate", "interactive", "eval_lm", "validate")
_LINES = {
    "fairseq_cli.train": r"task: |model: |criterion: |num\. expert model params: 0 |"
    r"Start iterating over samples|begin dry-run validation|begin validation on "
    r"|end of epoch |training on 1 |max tokens per device = ",
    "fairseq.trainer": r"detected shared parameter: |Preparing to load checkpoint |"
    r"loading train data for epoch |begin training epoch |(?:Saving|Finished saving) checkpoint ",
    "fairseq.checkpoint_utils": r"Preparing to save checkpoint |State of ",
    "fairseq.distributed.utils": r"distributed init |initialized host ",
    "fairseq.utils": r"--user-dir=",
    "fairseq.data.data_utils": r"loaded [\d,]+ examples from: ",
    "fairseq.data.iterators": r"grouped total_num_itrs = ",
    "fairseq.tasks.fairseq_task": r"(?:can_reuse_epoch_itr|reuse_dataloader|rebuild_batches) = |"
    r"creating new batches for epoch ",
} | dict.fromkeys([f"fairseq_cli.{name}" for name in _COMMANDS], "")
NOTE = "Set LOGLEVEL=DEBUG to print all options, all layers and fairseq's bookkeeping."


class DeveloperLines(logging.Filter):
    """Leave out what only a developer reads."""

    def __init__(self, lines: str) -> None:
        super().__init__()
        self.lines = re.compile(lines) if lines else None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is shown; the options become a note."""
        if logging.getLogger().isEnabledFor(logging.DEBUG) or record.levelno != logging.INFO:
            return True
        if isinstance(record.msg, Mapping | Namespace):
            record.msg = NOTE
        if isinstance(record.msg, nn.Module):
            return False
        return not (self.lines and self.lines.match(str(record.msg)))


class ClearBars(logging.Filter):
    """Clear the progress bars of the handler's stream before a line is written."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return true: every line is written."""
        for bar in getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ()):
            if hasattr(bar, "start_t") and not bar.disable:  # skip a bar that is under construction
                bar.clear(nolock=True)
        return True


for _name, _lines in _LINES.items():
    logging.getLogger(_name).addFilter(DeveloperLines(_lines))
_root = logging.getLogger()
if _root.level == logging.DEBUG:
    _root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
for _handler in _root.handlers:
    _handler.addFilter(ClearBars())
    if getattr(_handler.formatter, "_fmt", "") == logging.BASIC_FORMAT:
        _handler.setFormatter(logging.Formatter(FORMAT, "%Y-%m-%d %H:%M:%S"))
