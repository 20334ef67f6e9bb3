"""How far a repetition of a paper's training run may deviate from a published number."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from highrank_plugins.results.published import PARAMETERS, SIMILARITY, SIZES_DIFFER, Published

DEVIATIONS = 2.0  # tolerance of a repetition, in standard deviations over seeds
# Standard deviations over seeds, relative to the score, where no source of a task prints one. That
# of perplexities is the largest of the test texts in published.yaml. The others are the largest of
# docs/records: of the small Penn Treebank, and for BLEU of Multi30k after 19 epochs.
SPREADS = {"ppl": 0.0069, "KLD": 0.0085, "ε-rank": 0.0535, "rank": 0.0267, "BLEU": 0.0071}
_OF_RANK_D = ("softmax", "moc", "mos_k1")  # of exact rank, equal for all seeds
_FULL_RANK = 10  # components from which the rank of a MoS hardly grows
# how names of numbers begin that have no tolerance: they depend on the machine, follow from the
# scores, or no source says how they vary over seeds
WITHOUT_TOLERANCE = (
    "s/", "ms/", "slowdown", "hours", "p against", "Pearson", "slope", SIMILARITY,
)  # fmt: skip


def tolerance(entries: Sequence[Published], entry: Published, kind: str) -> float | None:
    """Return how far a repetition with another seed may deviate from a number of an entry.

    This is twice the deviation over seeds: the entry's own, else the largest of this kind among the
    entries of the task, relative to their scores, else that of `SPREADS`. Deviations of ranks
    depend on the layer, so only those of the same layer count. A gain has the tolerance of a
    difference of two perplexities. The numbers of `WITHOUT_TOLERANCE` have None.
    """
    if kind.startswith(WITHOUT_TOLERANCE):
        return None
    if kind == PARAMETERS and entry.parameters is not None:
        return SIZES_DIFFER * entry.parameters
    if kind.startswith("missing pairs") and kind in entry.cells:
        return 0.0  # the vocabulary alone decides
    if kind == "gain over softmax" and kind in entry.cells:
        deviations = [other.deviations.get("test ppl", 0.0) for other in entries]
        return DEVIATIONS * math.sqrt(2) * max(deviations)
    score = entry.scores[kind]
    if kind in entry.deviations:
        return DEVIATIONS * entry.deviations[kind]
    if kind.endswith("bits"):  # the logarithm of a perplexity
        return DEVIATIONS * SPREADS["ppl"] / math.log(2)
    if kind in ("rank", "valid rank"):
        return _tolerance_of_rank(entries, entry, kind)
    printed = [
        other.deviations[kind] / other.scores[kind] for other in entries if kind in other.deviations
    ]
    family = next((name for name in SPREADS if name in kind), "BLEU")
    return DEVIATIONS * score * max(printed, default=SPREADS[family])


def _tolerance_of_rank(entries: Sequence[Published], entry: Published, kind: str) -> float:
    layer = _layer(entry)
    if layer in _OF_RANK_D:  # some papers print d for d + 2
        return 2.0 if kind in entry.errata else 0.0
    printed = [
        other.deviations["rank"] / other.scores["rank"]
        for other in entries
        if "rank" in other.deviations and _layer(other) == layer
    ]
    return DEVIATIONS * entry.scores[kind] * max(printed, default=SPREADS["rank"])


def _layer(entry: Published) -> str:
    """Return the layer of the configuration that repeats an entry: mos, or mos_k3 for K = 3."""
    name, *words = (entry.conf or "").rpartition("/")[2].split("_")
    few = [w for w in words if re.fullmatch(r"k\d+", w) and int(w[1:]) < _FULL_RANK]
    return "_".join([name, *few])
