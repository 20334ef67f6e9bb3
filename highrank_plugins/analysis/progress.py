"""How far a long computation is, for whoever wants to see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

# (what is to be done one by one, its name) → the same, seen on the way; `tqdm` is one
Progress = Callable[[Sequence[Any], str], Iterable[Any]]


def silent(items: Sequence[Any], _name: str) -> Sequence[Any]:
    """Shows nothing."""
    return items
