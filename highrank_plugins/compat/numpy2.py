"""fairseq uses two names that numpy 2 removed.

What breaks: `--sample-break-mode eos`, `fairseq-interactive` and the hub interface of a language
model: `AttributeError: module 'numpy' has no attribute 'compat'`; `--num-batch-buckets`:
`TypeError: percentile() got an unexpected keyword argument 'interpolation'`.
Why: `np.compat.long` was Python 2's long; `interpolation` became `method`.
What we do: provide `np.compat.long` where numpy does not, and replace `get_buckets`.
Delete when: fairseq no longer mentions `np.compat` and `interpolation=`.
"""

from types import SimpleNamespace

import numpy as np
from fairseq.data import bucket_pad_length_dataset, data_utils
from fairseq.data.audio import raw_audio_dataset

if not hasattr(np, "compat"):
    np.compat = SimpleNamespace(long=int)


def get_buckets(sizes: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return upper ends of at most `num_buckets` ranges that hold equally many of `sizes` [N]."""
    quantiles = np.linspace(0, 100, num_buckets + 1)[1:]
    return np.unique(np.percentile(sizes, quantiles, method="lower"))


# two modules hold the function under their own name
for _module in (data_utils, bucket_pad_length_dataset, raw_audio_dataset):
    _module.get_buckets = get_buckets
