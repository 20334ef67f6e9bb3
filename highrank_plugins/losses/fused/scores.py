"""Scores of blocks as scores of a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from highrank_plugins.losses.fused.base import Scores


def gather_scores(parts: Iterable[Scores]) -> Scores:
    """One after the other."""
    nll, smooth_sums, hits = zip(*parts, strict=True)
    return Scores(torch.cat(nll), _joined(smooth_sums), _joined(hits))


def _joined(columns: Sequence[Tensor | None]) -> Tensor | None:
    """None where the parts have none."""
    there = [column for column in columns if column is not None]
    return torch.cat(there) if there else None
