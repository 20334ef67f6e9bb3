"""Register vocabulary matrices that are functions of other parameters, by name."""

from typing import Any

from highrank_plugins.heads.vocabulary.base import VOCABULARY, Vocabulary
from highrank_plugins.heads.vocabulary.factors import Codebook, LowRank, Tiers
from highrank_plugins.heads.vocabulary.rows import Centred, Unit

__all__ = ["Centred", "Codebook", "LowRank", "Tiers", "Unit", "build_vocabulary"]


def build_vocabulary(name: str | Vocabulary, **options: Any) -> Vocabulary:
    """Build the vocabulary matrix called `name`, or return `name` if it is one already."""
    if isinstance(name, Vocabulary):
        return name
    if not isinstance(name, str):
        raise ValueError(
            f"vocabulary: expected a name or an instance of Vocabulary, got {name!r}; write a "
            "class with forward, and pass an instance of it"
        )
    return VOCABULARY.build(name, **options)
