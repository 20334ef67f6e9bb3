"""Averages of weights (`--store-ema`) do not resume exactly, or not at all.

What breaks: a run that is resumed with `--store-ema` for the first time ends with `KeyError:
'model'`. With `--ema-update-freq N` a resumed training run averages after other updates than an
uninterrupted one, silently.
Why: `Trainer.load_checkpoint` takes the weights from a dictionary from which it has just deleted
them. The number of updates since the last average is not in the checkpoint.
What we do: hand the weights over as averages where a checkpoint has none, and keep the number in
the checkpoint.
Delete when: fairseq does both.
"""

import logging
from typing import Any

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from highrank_plugins.common.patching import replaces

logger = logging.getLogger(__name__)

_KEY = "ema_update_freq_counter"
_loading: list[Trainer] = []  # the trainer that loads a checkpoint, and needs averages


@replaces(Trainer, "state_dict")
def state_dict(stock, trainer) -> dict[str, Any]:
    """Return what a checkpoint holds, with the number of updates since the last average."""
    state = stock(trainer)
    if trainer.cfg.ema.store_ema:
        state["extra_state"][_KEY] = trainer.ema.update_freq_counter
    return state


@replaces(Trainer, "load_checkpoint")
def load_checkpoint(stock, trainer, *args, **kwargs):
    """Load as fairseq does, with the number of updates since the last average."""
    if not trainer.cfg.ema.store_ema:
        return stock(trainer, *args, **kwargs)
    _loading.append(trainer)
    try:
        extra_state = stock(trainer, *args, **kwargs)
    finally:
        _loading.clear()
    if extra_state is not None:
        trainer.ema.update_freq_counter = extra_state.pop(_KEY, 0)
    return extra_state


@replaces(checkpoint_utils, "load_checkpoint_to_cpu")
def load_checkpoint_to_cpu(stock, path, *args, **kwargs) -> dict[str, Any]:
    """Load a checkpoint; for a trainer that needs averages, they begin at its weights."""
    state = stock(path, *args, **kwargs)
    if _loading and state["extra_state"].setdefault("ema", state["model"]) is state["model"]:
        logger.warning(
            "%s holds no averaged weights (EMA): the averages start from its weights", path
        )
    return state
