"""Read the papers' scores, and how far a repetition may deviate from each."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.yaml_tree import read_tree
from highrank_plugins.results.metrics import KINDS

FILE = Path(__file__).with_suffix(".yaml")
PARAMETERS = "parameters"
SIMILARITY = "similarity_"
DEVIATIONS = 2.0  # tolerance of a repetition, in standard deviations over seeds
SIZES_DIFFER = 0.01  # sizes of models that are rounded in print, relative
# Standard deviations over seeds, relative to the score, where no source of a task prints one. That
# of perplexities is the largest of the test texts in published.yaml. The others are the largest of
# docs/records: of the small Penn Treebank, and for BLEU of Multi30k after 19 epochs.
SPREADS = {"ppl": 0.0069, "KLD": 0.0085, "ε-rank": 0.0535, "rank": 0.0267, "BLEU": 0.0071}
_OF_RANK_D = ("softmax", "moc", "mos_k1")  # of exact rank, equal for all seeds
_FULL_RANK = 10  # components from which the rank of a MoS hardly grows
# how names of numbers begin that have no tolerance → the reason
_MACHINE = "none, they depend on the machine"
_FOLLOWS = "none, they follow from the scores"
_UNKNOWN = "none, no source says how they vary over seeds"
WITHOUT_TOLERANCE = {
    "s/": _MACHINE,
    "ms/": _MACHINE,
    "slowdown": _MACHINE,
    "hours": _MACHINE,
    "p against": _FOLLOWS,
    "Pearson": _FOLLOWS,
    "slope": _UNKNOWN,
    SIMILARITY: _UNKNOWN,
}


class Published(BaseModel):
    """Hold one system of one source: its scores by kind, and where each is printed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    source: str
    table: str  # the table or figure with the scores and cells
    scores: dict[str, float] = {}
    deviations: dict[str, float] = {}  # standard deviations of scores over seeds
    conf: str | None = None  # the recipe's configuration that repeats the training run
    parameters: float | None = None  # stated by the source, or following from its sizes
    seeds: int = 1  # number of runs behind the deviations
    elsewhere: dict[str, str] = {}  # kind or cell → another table that prints it
    also: list[str] = []  # further tables that print the scores again
    cells: dict[str, float] = {}  # what our records lack: times, slowdowns, p-values, slopes
    similarity: dict[str, float] = {}  # benchmark of word similarity → Spearman's ρ
    contexts: dict[str, list[int]] = {}  # who chose them → those with the next word in the top 5
    errata: dict[str, str] = {}  # kind or cell → what is wrong or uncertain in it

    def tables_of(self, kind: str) -> list[str]:
        """Return the tables and figures that print a score or cell."""
        also = self.also if kind in self.scores else []
        return [self.elsewhere.get(kind, self.table), *also]


def read_published(task: str) -> list[Published]:
    """Return what papers report for a task, the name of its recipe."""
    tasks = read_tree(FILE).values
    if task not in tasks:
        near = did_you_mean(task, list(tasks)) or f"; known tasks: {', '.join(tasks)}"
        raise ValueError(f"no published scores of {task!r}{near}")
    return [Published.model_validate(entry) for entry in tasks[task]]


def paper_format(kind: str) -> str:
    """Return how papers print a kind of score."""
    known = KINDS.get(kind)
    return ".4g" if known is None else known.printed or known.format


def tolerance(entries: Sequence[Published], entry: Published, kind: str) -> float | None:
    """Return how far a repetition with another seed may deviate from a number of an entry.

    This is twice the deviation over seeds: the entry's own, else the largest of this kind among the
    entries of the task, relative to their scores, else that of `SPREADS`. Deviations of ranks
    depend on the layer, so only those of the same layer count. A gain has the tolerance of a
    difference of two perplexities. The numbers of `WITHOUT_TOLERANCE` have None.
    """
    if any(kind.startswith(name) for name in WITHOUT_TOLERANCE):
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
    return DEVIATIONS * score * max(printed, default=SPREADS[_family(kind)])


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


def _family(kind: str) -> str:
    """Return the entry of `SPREADS` for a kind of score."""
    return next((name for name in SPREADS if name in kind), "BLEU")


def _layer(entry: Published) -> str:
    """Return the layer of the configuration that repeats an entry: mos, or mos_k3 for K = 3."""
    name, *words = (entry.conf or "").rpartition("/")[2].split("_")
    few = [w for w in words if re.fullmatch(r"k\d+", w) and int(w[1:]) < _FULL_RANK]
    return "_".join([name, *few])
