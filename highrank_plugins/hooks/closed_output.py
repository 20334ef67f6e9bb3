"""A command whose output has lost its reader prints a traceback for every line of its log.

What breaks: `fairseq-eval-lm … | head -1` continues to its end, and prints `--- Logging error ---`
with 20 lines of `BrokenPipeError` for each line that it cannot write.
Why: Python's logging reports errors of writing, and never ends the command.
What we do: end the command, as a shell does (`user_errors.py` makes it exit code 1). A training run
continues silently: its numbers are in `metrics.jsonl`.
Delete when: never; this is how logging works.
"""

import logging
import sys
from pathlib import Path

from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import has_no_reader


@replaces(logging.Handler, "handleError")
def handle_error(stock, handler, record) -> None:
    """Handle an error of writing to the log."""
    error = sys.exc_info()[1]
    if not isinstance(error, BrokenPipeError) or not has_no_reader():
        stock(handler, record)
    elif Path(sys.argv[0]).stem not in ("fairseq-train", "train"):
        raise error
