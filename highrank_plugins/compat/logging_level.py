"""Every tool but fairseq-train prints the debugging messages of all libraries.

What breaks: `import fairseq` sets the root logger to DEBUG.
Why: `fairseq/models/wav2vec/wav2vec2_classification.py` calls `logging.basicConfig(level=DEBUG)`
when it is imported, before the tools set their own level, which then has no effect.
What we do: take DEBUG back to what the tools meant: `$LOGLEVEL`, INFO if unset. Any other level
was chosen by somebody and stays.
Delete when: that line is gone.
"""

import logging
import os

import fairseq.models  # noqa: F401  (sets the level)

_root = logging.getLogger()
if _root.level == logging.DEBUG:
    _root.setLevel(os.environ.get("LOGLEVEL", "INFO").upper())
