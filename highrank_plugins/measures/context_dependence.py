"""Measure how much predictions depend on what came before the preceding word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.analysis.divergence import Estimate, PredictionSums, mean_kld_of_sums
from highrank_plugins.analysis.predictions import perplexity_by_band
from highrank_plugins.common.formatting import Bars, Figure
from highrank_plugins.common.names import Score
from highrank_plugins.measures import base

NUMBERS = 2**22  # log-probabilities held in memory at a time


class PrecedingBand(NamedTuple):
    """Hold the contexts whose preceding word occurs low ≤ n < high times in the measured text.

    words: different preceding words. dependence: mean over these contexts; None for n = 1, which
    has no pairs. other: that of the other checkpoint. gain: how much −log P of the next word is
    lower than the other's, in nats.
    """

    low: int
    high: int | None
    words: int
    contexts: int
    dependence: float | None
    other: float | None
    gain: Estimate | None


@dataclass(frozen=True)
class ContextDependence:
    """Hold the mean KL(P_i ‖ P_j) in nats of different contexts with the same preceding word.

    Each of the `repeated` contexts counts with its mean over all others of its preceding word.
    """

    contexts: int
    repeated: int
    dependence: float | None
    other: float | None
    gain: Estimate | None
    bands: list[PrecedingBand]


@base.register_measure("context_dependence")
class ContextDependenceMeasure(base.ContextMeasure):
    """Compare predictions after the same preceding word.

    It is the mean KL(P_i ‖ P_j) over pairs of contexts with one preceding word, in nats, by how
    often the text has that word. A model that reads only one word has 0. With --other also how much
    better the first checkpoint predicts, by the same.
    """

    on_card = False

    def __init__(
        self,
        bands: Annotated[
            tuple[int, ...],
            "Numbers of occurrences of the preceding word at which bands end, separated by commas.",
        ] = (2, 10, 100, 1000),
    ) -> None:
        perplexity_by_band(torch.zeros(1), torch.ones(1), bands)  # raises for invalid bands
        self.bands = bands

    def merge(self, parts: Sequence[Any]) -> ContextDependence:
        features, target = self.joined(parts)
        return self._result(target, [self._of_contexts(features, target)])

    def compare(
        self, parts: Sequence[Any], other: base.TextMeasure, its_parts: Sequence[Any]
    ) -> ContextDependence:
        assert isinstance(other, ContextDependenceMeasure)
        own, its, target = self.same_text(parts, other, its_parts)
        of_both = [self._of_contexts(own, target), other._of_contexts(its, target)]
        return self._result(target, of_both)

    def _preceding(self, target: Tensor) -> Tensor:
        """Return the word before each word of the text; `</s>` before the first one."""
        return torch.cat([target.new_tensor([self.words.dictionary.eos()]), target[:-1]])

    @torch.no_grad()
    def _of_contexts(self, features: Tensor, target: Tensor) -> Tensor:
        """Return −log P of the words and the dependence, NaN for contexts without pairs [2, n].

        One preceding word is in memory at a time. Pairs of a context with itself, whose divergence
        is 0, are taken out of the mean over all n² pairs by the factor n / (n − 1).
        """
        head, found = self.words.head, torch.full((2, len(target)), torch.nan, dtype=torch.float64)
        preceding, order = self._preceding(target).sort(stable=True)
        for places in order.split(preceding.unique_consecutive(return_counts=True)[1].tolist()):
            sums, n = None, len(places)
            for some in places.split(max(1, NUMBERS // head.num_classes)):
                log_probs = head.log_probs(features[some])
                if log_probs.isnan().any():
                    raise FloatingPointError("log-probabilities are NaN: the model has diverged")
                found[0, some.cpu()] = -log_probs.gather(1, target[some, None])[:, 0].double().cpu()
                sums = PredictionSums.of_rows(log_probs, sums)
            if sums is not None and n > 1:
                found[1, places.cpu()] = mean_kld_of_sums(sums, sums) * n / (n - 1)
        return found

    def _result(self, target: Tensor, of_models: list[Tensor]) -> ContextDependence:
        _, word, counts = (
            self._preceding(target).cpu().unique(return_inverse=True, return_counts=True)
        )
        nll, dependences = zip(*of_models, strict=True)

        def band(low: int, high: int | None) -> PrecedingBand:
            inside = (counts >= low)[word]
            if high is not None:
                inside &= (counts < high)[word]
            means = [_mean(one[inside]) for one in dependences]
            gain = None
            if len(nll) > 1 and inside.sum() > 1:
                gain = Estimate.of((nll[1] - nll[0])[inside])
            size = len(word[inside].unique()), int(inside.sum())
            return PrecedingBand(low, high, *size, means[0], [*means, None][1], gain)

        whole, repeated = band(1, None), int((counts > 1)[word].sum())
        of_whole = whole.dependence, whole.other, whole.gain
        ends = [*self.bands, None]
        bands = [band(*edges) for edges in zip([1, *self.bands], ends, strict=True)]
        return ContextDependence(len(target), repeated, *of_whole, bands)

    @classmethod
    def scores(cls, found: base.Found, split: str) -> dict[str, Score]:
        if found["dependence"] is None:
            return {}
        signature = f"contexts:{found['contexts']}|repeated:{found['repeated']}"
        return {f"{split}_context_dependence": Score(found["dependence"], signature)}

    def figures(self, result: ContextDependence) -> list[Figure]:
        drawn = {f"{b.low:,}+": b.dependence for b in result.bands if b.dependence is not None}
        axes = ("occurrences of the preceding word", "nats")
        return [Bars({"": drawn}, "Dependence on earlier words", axes)] if drawn else []


def _mean(values: Tensor) -> float | None:
    found = values[~values.isnan()]
    return float(found.mean()) if len(found) else None
