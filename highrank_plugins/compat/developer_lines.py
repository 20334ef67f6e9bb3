"""Two hundred lines of a training run's log are for fairseq's developers.

What breaks: before its first update a run prints every option of fairseq as a dictionary of
10,000 characters. It also prints every layer of the network, each pair of tied tensors, and how
batches are kept between epochs. What a person looks for, such as sizes of dictionaries or the
number of parameters, is lost in between. Each checkpoint is announced three times, with the
machine's absolute paths, and its last line has 17 digits of seconds.
Why: fairseq logs all of it at the level INFO.
What we do: leave these lines out and round the seconds, unless `LOGLEVEL=DEBUG`. One line says so.
Delete when: fairseq logs them at the level DEBUG.
"""

import logging
import re
from argparse import Namespace
from collections.abc import Mapping

from torch import nn

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
    "fairseq_cli.preprocess": "",
    "fairseq_cli.generate": "",
    "fairseq_cli.interactive": "",
    "fairseq_cli.eval_lm": "",
    "fairseq_cli.validate": "",
}
_SECONDS = re.compile(r"\(writing took (\d+\.\d)\d* seconds\)")
NOTE = "Set LOGLEVEL=DEBUG to print all options, all layers and fairseq's bookkeeping."


class DeveloperLines(logging.Filter):
    """Leave out what only a developer reads."""

    def __init__(self, lines: str) -> None:
        super().__init__()
        self.lines = re.compile(lines) if lines else None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is shown; the options become a note, and seconds are rounded.

        fairseq-preprocess begins its lines with the language, which is None for a language model.
        """
        if logging.getLogger().isEnabledFor(logging.DEBUG) or record.levelno != logging.INFO:
            return True
        if isinstance(record.msg, Mapping | Namespace):
            record.msg = NOTE
        if isinstance(record.msg, nn.Module):
            return False
        if isinstance(record.msg, str):
            record.msg = _SECONDS.sub(r"(written in \1 s)", record.msg).removeprefix("[None] ")
        return not (self.lines and self.lines.match(str(record.msg)))


for _name, _lines in _LINES.items():
    _logger = logging.getLogger(_name)
    if not any(type(known).__name__ == "DeveloperLines" for known in _logger.filters):
        _logger.addFilter(DeveloperLines(_lines))
