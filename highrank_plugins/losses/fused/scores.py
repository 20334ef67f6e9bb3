"""Scores of blocks as scores of a chunk."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .base import Scores


def gather_scores(parts: Iterable[Scores]) -> Scores:
    """One after the other."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    columns = (
        None if column[0] is None else torch.cat([c for c in column if c is not None])
        for column in zip(*parts, strict=True)
    )
    return Scores(*columns)  # type: ignore[arg-type]  # nll is never None
