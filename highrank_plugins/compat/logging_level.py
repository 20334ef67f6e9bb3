"""Every tool but fairseq-train prints the debugging messages of all libraries, without their time.

What breaks: `import fairseq` sets the root logger to DEBUG, and lines look like
`INFO:name:message`.
Why: `fairseq/models/wav2vec/wav2vec2_classification.py` calls `logging.basicConfig(level=DEBUG)`
when it is imported, before the tools set their own level and format, which then have no effect.
What we do: take DEBUG back to what the tools meant: `$LOGLEVEL`, INFO if unset. Any other level
was chosen on purpose and stays. Lines get the format that all tools ask for, with the time. They
stay on the standard error, apart from translations and scores.
Delete when: that line is gone.
"""

import logging
import os

import fairseq.models  # noqa: F401  (importing it sets the level that is changed below)

FORMAT = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"
_root = logging.getLogger()
if _root.level == logging.DEBUG:
    _root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
for _handler in _root.handlers:
    if getattr(_handler.formatter, "_fmt", "") == logging.BASIC_FORMAT:
        _handler.setFormatter(logging.Formatter(FORMAT, "%Y-%m-%d %H:%M:%S"))
