"""The last batch of every split disappears silently.

What breaks: fairseq-generate translates 1008 of 1014 sentences, and fairseq-validate and
fairseq-train use as few; four sentences give "The dataset is empty".
Why: `data_utils.batch_by_size` ends by dropping the last batch if its size is not a multiple of
`--required-batch-size-multiple`, which is 8 by default.
What we do: keep it, whatever the multiple is, so that no sentence is lost. The other batches
are as before.
Delete when: `batch_by_size` keeps its remainder.
"""

from collections.abc import Callable
from typing import Any

from fairseq.data import data_utils

from highrank_plugins.common.patching import replaces


@replaces(data_utils, "batch_by_size")
def batch_by_size(stock: Callable, indices: Any, *args: Any, **kwargs: Any) -> list:
    """Return batches that cover all of `indices`: fairseq's, then one with what it drops."""
    if len(indices) == 0:
        return []  # stock fairseq raises IndexError here
    batches = stock(indices, *args, **kwargs)
    dropped = indices[sum(map(len, batches)) :]  # none with `fixed_shapes`, where the order differs
    return [*batches, dropped] if len(dropped) else batches
