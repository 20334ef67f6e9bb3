"""Read the options that a checkpoint stores, also those of older versions of fairseq."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any


def saved_options(state: Mapping[str, Any], block: str) -> dict[str, Any]:
    """Return a block of a checkpoint's options; fairseq 0.9 and 0.10 keep all blocks in one.

    Checkpoints without options have none.
    """
    cfg = state.get("cfg")
    found = cfg.get(block) if cfg else state.get("args")
    return vars(found) if isinstance(found, Namespace) else found or {}
