"""Read what checkpoints say about their models, also those of older versions of fairseq."""

import logging
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)
_warned: set[str] = set()


def saved_options(state: Mapping[str, Any], block: str) -> dict[str, Any]:
    """Return a block of a checkpoint's options; fairseq 0.9 and 0.10 keep all blocks in one.

    Checkpoints without options have none.
    """
    cfg = state.get("cfg")
    found = cfg.get(block) if cfg else state.get("args")
    return vars(found) if isinstance(found, Namespace) else found or {}


def warn_without_hash(path: str, state: Mapping[str, Any]) -> None:
    """Warn, once a file, of a checkpoint that cannot show which words its numbers stand for."""
    if "dictionaries" not in (state.get("task_state") or {}) and path not in _warned:
        _warned.add(path)
        logger.warning(
            "%s holds no hash of its dictionary, so nothing can check that the dictionary here is "
            "the same. Checkpoints saved from now on hold one.",
            path,
        )
