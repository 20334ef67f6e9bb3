"""Measure how many of the most probable words of another model a layer can put on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch

from highrank_plugins.analysis.unargmaxable_words import ranks_linearly, reach
from highrank_plugins.common.formatting import Bars, Figure, bar
from highrank_plugins.common.names import layer_name
from highrank_plugins.measures import base


@dataclass(frozen=True)
class Reach:
    """Hold the reach in each of some contexts: numbers of words, at most `most`.

    sets: the largest m for which some features put exactly the other model's 1, 2, … m most
        probable words above all others.
    probabilities: the largest m for which some features also give these their probabilities, up to
        one factor; None for a layer with a pointwise function.
    """

    contexts: int
    most: int
    mean_sets: float
    mean_probabilities: float | None
    sets: list[int]
    probabilities: list[int] | None


@base.register_measure("reach")
class ReachMeasure(base.ContextMeasure):
    """Count another model's words that can be put on top.

    Linear programs decide for each context whether any features of the vocabulary matrix as trained
    lead to exactly these words, and to their probabilities (Basri and Jacobs 2026). It applies to a
    softmax with any increasing pointwise function, not to mixtures. The other model may have any
    layer: with its own predictions, each layer reaches all words.
    """

    on_card = False  # it needs another model
    needs_other = True

    def __init__(
        self,
        contexts: Annotated[int, "Number of contexts, evenly spaced in the text."] = 20,
        most: Annotated[int, "Stop at this many words."] = 64,
    ) -> None:
        if contexts < 1 or most < 1:
            raise ValueError(f"--contexts {contexts}, --most {most}: must be at least 1")
        self.contexts, self.most = contexts, most

    @torch.no_grad()
    def compare(
        self, parts: Sequence[Any], other: base.TextMeasure, its_parts: Sequence[Any]
    ) -> Reach:
        head = self.words.head
        if not ranks_linearly(head):
            raise ValueError(
                f"reach: not applicable to {layer_name(head)}: its probabilities do not follow the "
                "order of logits that are linear in the features. Give a softmax first, and this "
                "checkpoint as --other"
            )
        _, features, _ = self.same_text(parts, other, its_parts)
        count = min(self.contexts, len(features))
        chosen = features[torch.arange(count) * len(features) // count]
        found = []
        for one in bar(list(chosen.split(1)), "contexts"):
            top = (
                other.words.head.log_probs(one)[0].cpu().topk(min(self.most, head.num_classes - 1))
            )
            levels = top.values if head.pointwise.is_identity else None
            order = top.indices.tolist()
            found.append(reach(head.weight, head.bias, order, levels))
        sets, exact = [one for one, _ in found], [two for _, two in found if two is not None]
        mean = sum(exact) / count if exact else None
        return Reach(count, len(order), sum(sets) / count, mean, sets, exact or None)

    def figures(self, result: Reach) -> list[Figure]:
        counts = {str(m): float(result.sets.count(m)) for m in sorted({*result.sets})}
        return [Bars({"": counts}, "Reach", ("words that can be put on top", "contexts"))]
