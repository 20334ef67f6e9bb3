"""Data workers outlive their epoch, so that a long run gathers processes and waits for them.

What breaks: with --num-workers ≥ 1 each epoch and each validation leaves a process behind, until
Python happens to collect garbage, which can be dozens of epochs. The collection then takes 5
seconds for each process, kills it, and leaves its folder `pymp-…` in the temporary folder. There is
no message.
Why: the workers end when their loader does, and two cycles of references hold it. The iterator of
an epoch holds the loader, which holds the sampler, which holds a method of the iterator. The other
cycle is an error of omegaconf, raised where fairseq asks for an option that a task does not have
(`reuse_dataloader`). The error refers to itself, and to the function that asked, which has made the
iterator. When garbage is collected, the queue to a worker closes before the loader can ask the
worker to end.
What we do: the sampler holds the iterator weakly, and omegaconf's errors forget their variables.
Delete when: `FrozenBatchSampler` no longer keeps `ordered_batches`, and `format_and_raise` of
omegaconf deletes its variable `ex`; or the training loop closes the loader of an epoch.
"""

import inspect
import traceback
from weakref import WeakMethod

from fairseq.data.iterators import FrozenBatchSampler
from omegaconf import DictConfig

from highrank_plugins.common.patching import replaces


@replaces(FrozenBatchSampler, "__init__")
def __init__(stock, sampler, ordered_batches, *args, **kwargs):
    """Construct a sampler that holds its iterator weakly, because the iterator owns it."""
    if inspect.ismethod(ordered_batches):
        method = WeakMethod(ordered_batches)
        stock(sampler, lambda *words: method()(*words), *args, **kwargs)
    else:
        stock(sampler, ordered_batches, *args, **kwargs)


@replaces(DictConfig, "__getattr__")
def __getattr__(stock, cfg, key):
    """Return an option; an error about a missing one does not refer to itself."""
    try:
        return stock(cfg, key)
    except AttributeError as error:
        traceback.clear_frames(error.__traceback__)
        raise
