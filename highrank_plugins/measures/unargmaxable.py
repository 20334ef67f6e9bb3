"""Find words that no context can make the most probable ones (Grivas et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from highrank_plugins.analysis.unargmaxable_words import ranks_linearly, unargmaxable_classes
from highrank_plugins.common.formatting import Bars, Figure, bar
from highrank_plugins.common.names import layer_name
from highrank_plugins.measures import base

SHOWN = 200  # number of words on a card
LARGEST = 10**11  # largest M² d for which a card solves the linear programs (a few minutes)


@dataclass(frozen=True)
class Unargmaxable:
    """Hold the words that no context can make the most probable; None if not applicable."""

    total: int
    count: int | None
    applicable: bool
    reason: str
    words: list[str] | None
    classes: list[int] | None


@base.register_measure("unargmaxable")
class UnargmaxableMeasure(base.WeightMeasure):
    """Find words that no context can make the most probable.

    Linear programs decide which. It applies to a softmax with any increasing pointwise function,
    not to mixtures.
    """

    title = "Words that can never be on top"
    about = (
        "With fewer dimensions than words, the vector of a word may lie within those of others: no "
        "context then makes it the most probable (Grivas et al. 2022)."
    )

    @classmethod
    def for_card(cls, words: base.Words) -> Self:
        head = words.head
        if ranks_linearly(head) and head.num_classes**2 * head.embed_dim > LARGEST:
            raise ValueError(
                f"{head.num_classes:,} words of {head.embed_dim} dimensions would take hours; "
                "run `highrank measure unargmaxable`"
            )
        return cls()

    def measure(self, words: base.Words) -> Unargmaxable:
        head = words.head
        if not ranks_linearly(head):
            why = "do not follow the order of logits that are linear in the features"
            reason = f"not applicable: the probabilities of {layer_name(head)} {why}"
            return Unargmaxable(head.num_classes, None, False, reason, None, None)
        found = unargmaxable_classes(base.in_float64(head), progress=bar).tolist()
        named = [words.word(index) for index in found]
        return Unargmaxable(head.num_classes, len(found), True, "", named, found)

    def figures(self, result: Unargmaxable) -> list[Figure]:
        if result.count is None:
            return []
        shares = {"can be predicted": result.total - result.count, "never": result.count}
        return [Bars({"": shares}, "Words that can be on top", ("", "words"))]

    def rows(self, result: Unargmaxable) -> base.Rows:
        if result.count is None:
            return []
        rows = [("words that can never be on top", f"{result.count:,} of {result.total:,}")]
        if not result.words:
            return rows
        more = f", … and {result.count - SHOWN:,} more" if result.count > SHOWN else ""
        return [*rows, ("they are", ", ".join(result.words[:SHOWN]) + more)]
