"""Data workers outlive their epoch, but not a signal to the whole training run.

What breaks: with `--num-workers` each epoch leaves a process behind until Python collects garbage,
which then takes 5 seconds a process. SIGTERM to all processes of a run ends its workers, too, and
the run with "DataLoader worker exited unexpectedly" instead of a checkpoint.
Why: workers end when their loader does, and two cycles of references hold it. The iterator of an
epoch holds the loader, whose sampler holds a method of the iterator. And where a task lacks an
option, omegaconf's error holds itself and the function that made the iterator. A worker's own
handler ends it at any SIGTERM.
What we do: the sampler holds the iterator weakly, and omegaconf's errors forget their variables. A
worker lets the signals of `stop_request.py` pass, except those of its own run, and ignores SIGINT.
Delete when: the training loop closes the loader of an epoch, and torch's workers leave SIGTERM from
other processes to their parent.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from fairseq.data.iterators import FrozenBatchSampler
from omegaconf import DictConfig
from torch.utils.data import DataLoader

from highrank_plugins.common import stop_request
from highrank_plugins.common.patching import replaces


@replaces(FrozenBatchSampler, "__init__")
def make_sampler(
    stock: Callable, sampler: Any, ordered_batches: Any, *args: Any, **kwargs: Any
) -> None:
    """Construct a sampler that holds its iterator weakly, because the iterator owns it."""
    method = WeakMethod(ordered_batches)
    stock(sampler, lambda *words: method()(*words), *args, **kwargs)


@replaces(DictConfig, "__getattr__")
def option(stock: Callable, cfg: Any, key: str) -> Any:
    """Return an option; an error about a missing one does not refer to itself."""
    try:
        return stock(cfg, key)
    except AttributeError as error:
        traceback.clear_frames(error.__traceback__)
        raise


@replaces(DataLoader, "__init__")
def make_loader(stock: Callable, loader: Any, *args: Any, **kwargs: Any) -> None:
    stock(loader, *args, **kwargs)
    if loader.worker_init_fn is None:
        loader.worker_init_fn = obey_parent_only


def obey_parent_only(_worker: int) -> None:
    """Let signals pass by this worker, except those of its parent, which end it."""
    # Python's handlers cannot tell who sent a signal; a thread that waits for it can
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, stop_request.SIGNALS)
    threading.Thread(target=_end_with_parent, name="signals", daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()  # `os.getppid` may be a server that forks
    while parent and signal.sigwaitinfo(stop_request.SIGNALS).si_pid != parent.pid:
        pass
    os._exit(0)
