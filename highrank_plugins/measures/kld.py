"""Measure how much predictions differ, within a model and between two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor

from highrank_plugins.analysis import divergence
from highrank_plugins.analysis.predictions import check_log_probs
from highrank_plugins.common.formatting import Bars, Figure
from highrank_plugins.common.names import Score
from highrank_plugins.heads import Head
from highrank_plugins.measures import base

NUMBERS = 2**22  # log-probabilities held in memory at a time


@dataclass(frozen=True)
class Divergences:
    """Hold KL(P_i ‖ Q_j) in nats for contexts i and j of the text; with one model, Q is P.

    sampled: mean over drawn pairs. all_pairs: over all; None if not asked for. matched: of
    KL(P_i ‖ Q_i), two models in the same context; None with one.
    """

    contexts: int
    sampled: divergence.Estimate | None
    all_pairs: float | None
    matched: divergence.Estimate | None


_Part = tuple[Tensor, Tensor, Any]  # as of ContextMeasure; PredictionSums if wanted


@base.register_measure("kld")
class DivergenceMeasure(base.ContextMeasure):
    """Compute the divergence between predictions.

    It is the mean KL(P_i ‖ Q_j) in two contexts i, j, in nats, drawn independently. With --other
    also KL(P_i ‖ Q_i), both models in the same context.
    """

    title = "Divergence of predictions"
    about = (
        "The mean KL(P_i ‖ P_j) between the predictions of two independently drawn contexts tells "
        "how much a prediction depends on its context (Yang et al. 2018). It is 0 for a model that "
        "ignores the context."
    )

    def __init__(
        self,
        pairs: Annotated[
            int | Literal["all"], "Pairs of contexts to draw, with replacement; all: exact mean."
        ] = 10_000,
    ) -> None:
        if pairs != "all" and pairs < 2:
            raise ValueError(f"--pairs {pairs}: must be at least 2, for a standard error")
        self.pairs = pairs

    @classmethod
    def for_card(cls, words: base.Words) -> Self:
        return cls(pairs="all")

    def start(self, words: base.Words, dtype: torch.dtype = torch.float32) -> None:
        super().start(words, dtype)
        self._sums: divergence.PredictionSums | None = None

    def observe(self, block: base.Block) -> None:
        super().observe(block)
        if self.pairs == "all":
            check_log_probs(block.log_probs, f"token {block.first}")
            self._sums = divergence.PredictionSums.of_rows(block.log_probs, self._sums)

    def part(self) -> Any:
        return (*super().part(), self._sums)

    def merge(self, parts: Sequence[_Part]) -> Divergences:
        own, _ = self.joined([part[:2] for part in parts])
        return self._divergences(self, own, own, parts, parts)

    def compare(
        self, parts: Sequence[_Part], other: base.TextMeasure, its_parts: Sequence[_Part]
    ) -> Divergences:
        own, its, _ = self.same_text(parts, other, its_parts)
        every = torch.arange(len(own))
        p, q = self.words.head, other.words.head
        found = self._divergences(other, own, its, parts, its_parts)
        return replace(found, matched=_mean_of(p, own, every, q, its, every))

    def _divergences(
        self, other: base.TextMeasure, x: Tensor, y: Tensor, *both: Sequence[_Part]
    ) -> Divergences:
        """Return the mean over all pairs of a context of each, or over drawn ones."""
        if self.pairs == "all":
            own, its = (reduce(add, [sums for *_, sums in parts]) for parts in both)
            return Divergences(len(x), None, divergence.mean_kld_of_sums(own, its), None)
        first, second = divergence.drawn_pairs(len(x), len(y), self.pairs, seed=0)
        sampled = _mean_of(self.words.head, x, first, other.words.head, y, second)
        return Divergences(len(x), sampled, None, None)

    @classmethod
    def scores(cls, found: base.Found, split: str) -> dict[str, Score]:
        if found.get("matched") is not None:  # of two models; `kld` is the name of a model's own
            return {}
        value, drawn = found["all_pairs"], "all"
        if value is None:
            value, drawn = found["sampled"]["mean"], found["sampled"]["pairs"]
        return {f"{split}_kld": Score(value, f"contexts:{found['contexts']}|pairs:{drawn}")}

    def figures(self, result: Divergences) -> list[Figure]:
        means = {
            "sampled": result.sampled and result.sampled.mean,
            "all pairs": result.all_pairs,
            "same context": result.matched and result.matched.mean,
        }
        shown = {name: mean for name, mean in means.items() if mean is not None}
        return [Bars({"": shown}, "Divergence of predictions", ("pairs", "nats"))]

    def rows(self, result: Divergences) -> base.Rows:
        mean = f"{result.all_pairs:.4f} nats"  # cards take all pairs
        return [("contexts", f"{result.contexts:,}"), ("mean over all pairs", mean)]


@torch.no_grad()
def _mean_of(
    p: Head, x: Tensor, first: Tensor, q: Head, y: Tensor, second: Tensor
) -> divergence.Estimate:
    size = max(1, NUMBERS // p.num_classes)
    values = torch.cat(
        [
            divergence.row_kld(p.log_probs(x[i.to(x.device)]), q.log_probs(y[j.to(y.device)]))
            for i, j in zip(first.split(size), second.split(size), strict=True)
        ]
    )
    if values.isnan().any():
        raise FloatingPointError("log-probabilities are NaN: the checkpoint has diverged")
    return divergence.Estimate.of(values)
