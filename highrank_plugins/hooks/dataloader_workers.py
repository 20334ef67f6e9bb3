"""Data workers outlive their epoch, so that a long training gathers processes.

What breaks: with --num-workers ≥ 1 each epoch and each validation leaves a process behind, until
Python happens to collect garbage: dozens after as many epochs. No message.
Why: the workers end when their loader does, and the loader is part of a reference cycle. The
iterator of an epoch holds the loader, which holds the sampler, which holds a method of the
iterator.
What we do: the sampler holds it weakly.
Delete when: `FrozenBatchSampler` no longer keeps `ordered_batches`, or the training loop closes the
loader of an epoch.
"""

import inspect
from weakref import WeakMethod

from fairseq.data.iterators import FrozenBatchSampler

from highrank_plugins.common.patching import replaces


@replaces(FrozenBatchSampler, "__init__")
def __init__(stock, sampler, ordered_batches, *args, **kwargs):
    """Construct a sampler that does not keep the iterator alive, which owns and outlives it."""
    if inspect.ismethod(ordered_batches):
        method = WeakMethod(ordered_batches)
        stock(sampler, lambda *words: method()(*words), *args, **kwargs)
    else:
        stock(sampler, ordered_batches, *args, **kwargs)
