"""Measure how much of the loss's gradient passes the vocabulary matrix, along a text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank_plugins.analysis.retention import column_space, retained_by_head
from highrank_plugins.common.formatting import Figure, Lines, percent
from highrank_plugins.common.names import Score
from highrank_plugins.measures import base

NUMBERS = 2**24  # logits held in memory at a time
MONITORED_TOKENS, MONITORED_NUMBERS = 64, 2**22  # limits for a batch in training


@dataclass(frozen=True)
class Retention:
    """Hold ‖G P‖ / ‖G‖ of the gradient G of the logits, see `gradient_retention`.

    whole: of all tokens together. batches: of each batch. first: the first token of each.
    """

    tokens: int
    whole: float
    batches: list[float]
    first: list[int]


@base.register_measure("retention")
class RetentionMeasure(base.CollectingMeasure):
    """Compute how much gradient passes the output layer.

    It is the share of the logits' gradient that the vocabulary matrix lets through, by batch. Costs
    as much as training the layer on the text.
    """

    title = "Gradient retention"
    about = (
        "The share of the norm of the loss' gradient with respect to the logits that lies in the "
        "column space of W, which is all that can reach the features (Godey and Artzi 2026)."
    )
    hidden = ("batches", "first")
    card_tokens = 256

    def start(self, words: base.Words, dtype: torch.dtype = torch.float32) -> None:
        super().start(words, dtype)
        self._to_basis = column_space(words.head.weight).to_basis

    def seen(self, block: base.Block) -> Sequence[Tensor]:
        """Return first token, number, ‖G P‖² and ‖G‖² of a batch [1, 4]."""
        kept, whole = retained_by_head(
            block.head, self._to_basis, block.features, block.target, NUMBERS
        )
        total = float(whole.sum())
        if not total > 0:
            raise ValueError(f"batch at token {block.first}: the gradient of the logits is {total}")
        batch = block.first, len(block.target), float(kept.sum()), total
        return (torch.tensor([batch], dtype=torch.float64),)

    def merge(self, parts: Sequence[Sequence[Tensor]]) -> Retention:
        batches = self.joined(parts)[0].tolist()
        return Retention(
            tokens=int(sum(count for _, count, _, _ in batches)),
            whole=math.sqrt(sum(b[2] for b in batches) / sum(b[3] for b in batches)),
            batches=[math.sqrt(kept / whole) for _, _, kept, whole in batches],
            first=[int(first) for first, _, _, _ in batches],
        )

    @classmethod
    def scores(cls, found: base.Found, split: str) -> dict[str, Score]:
        return {f"{split}_retention": Score(found["whole"], f"tokens:{found['tokens']}")}

    def figures(self, result: Retention) -> list[Figure]:
        if len(result.batches) < 2:
            return []
        title = f"Gradient retention: {result.whole:.3f}"
        series = {"batch": (result.first, result.batches)}
        return [Lines(series, title, ("token", "‖G P‖ / ‖G‖"), ends=(0, 1))]

    def rows(self, result: Retention) -> base.Rows:
        return [("tokens", f"{result.tokens:,}"), ("of all together", percent(result.whole))]

    @classmethod
    def monitor(cls, batch: base.MonitoredBatch) -> base.Snapshot:
        some = batch.some(MONITORED_TOKENS)
        if some is None:
            return {}
        basis = batch.column_space.to_basis
        kept, whole = retained_by_head(batch.head, basis, *some, MONITORED_NUMBERS)
        if not whole.any():
            return {}
        return {"gradient_retention": math.sqrt(float(kept.sum()) / float(whole.sum()))}
