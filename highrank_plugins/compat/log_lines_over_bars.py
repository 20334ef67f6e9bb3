"""Log lines are appended to a progress bar.

What breaks: in a terminal, a line that is logged during an epoch continues the line of the bar,
as in `epoch 001:   0%|    | 0/33 [00:00<?, ?it/s]2026-11-24 09:14:02 | INFO | …`.
Why: fairseq's loggers write to the terminal without knowing of tqdm's bars.
What we do: clear the bars before each line. They are drawn again at the next update.
Delete when: fairseq writes its log through tqdm.
"""

import logging
import sys


class ClearBars(logging.Filter):
    """Clear the progress bars of the handler's stream before a line is written."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return true: every line is written."""
        for bar in getattr(getattr(sys.modules.get("tqdm"), "tqdm", None), "_instances", ()):
            if hasattr(bar, "start_t") and not bar.disable:  # skip a bar that is under construction
                bar.clear(nolock=True)
        return True


for _handler in logging.getLogger().handlers:
    if not any(type(known).__name__ == "ClearBars" for known in _handler.filters):
        _handler.addFilter(ClearBars())
