"""fairseq uses a name that numpy 2 removed.

What breaks: `--sample-break-mode eos`, `fairseq-interactive` and the hub interface of a language
model: `AttributeError: module 'numpy' has no attribute 'compat'`.
Why: `np.compat.long` was Python 2's long.
What we do: provide `np.compat.long` where numpy does not.
Delete when: fairseq no longer mentions `np.compat`.
"""

from types import SimpleNamespace

import numpy as np

if not hasattr(np, "compat"):
    np.compat = SimpleNamespace(long=int)
