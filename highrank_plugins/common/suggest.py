"""Suggest the known name that a mistyped one probably means."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'lr'?"`, or nothing if no known name is near."""
    matches = get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
