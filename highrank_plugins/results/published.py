"""Show the papers' scores next to ours, and how far a repetition may deviate from each."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from highrank_plugins.common.blocks import read_tree
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.perplexity import BEFORE

FILE = Path(__file__).with_suffix(".yaml")
PARAMETERS = "parameters"
SIMILARITY = "similarity_"
# files of word pairs, as Faruqui and Dyer distribute them → their names in Parthiban et al. 2021
BENCHMARKS = {
    "EN-WS-353-ALL": "WS-353",
    "EN-WS-353-SIM": "WS-SIM",
    "EN-WS-353-REL": "WS-REL",
    "EN-RG-65": "RG-65",
    "EN-MC-30": "MC-30",
    "EN-MTurk-287": "MTurk-287",
    "EN-MTurk-771": "MTurk-771",
    "EN-MEN-TR-3k": "MEN",
    "EN-YP-130": "YP-130",
    "EN-VERB-143": "VERB-143",
    "EN-RW-STANFORD": "RW",
    "EN-SimVerb-3500": "SimVerb",
    "EN-SIMLEX-999": "SimLex",
}
# the last sentence of the table
CLAIM = (
    "What can be claimed: not which system is better. Perplexities compare over one text and "
    "vocabulary only; `highrank compare --paper` tests the numbers that compare."
)
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


def published_rows(
    task: str, ours: Mapping[str, Mapping[str, float]], everything: bool = False
) -> tuple[list[str], list[list[str]], list[str]]:
    """Return headings (a kind of score each), a row for each system, ours first, and notes.

    Args:
        ours: name of a run → its metrics, as in its record, and its `parameters`.
        everything: also what none of our runs has: scores, times, word similarities and other
            cells. Each has its tolerance; what has none and the errata follow, a paragraph each.
    """
    entries = read_published(task)
    own = [(name, _of_run(metrics), "this run") for name, metrics in _checkpoints(ours)]
    theirs = [
        (entry.system, _of_entry(entry, entries if everything else ()), entry.source)
        for entry in entries
    ]
    measured = {column for _, cells, _ in own for column in cells}
    published = dict.fromkeys(column for _, cells, _ in theirs for column in cells)
    always = {kind for kind, metric in KINDS.items() if not metric.detail}
    scores = [*KINDS, PARAMETERS]
    wanted = always | (measured & {*scores})
    if everything:
        wanted |= published.keys()
    known = published.keys() | (measured & always)
    columns = [name for name in dict.fromkeys([*scores, *published]) if name in wanted & known]
    rows = [
        [name, *(cells.get(column, "") for column in columns), source]
        for name, cells, source in [*own, *theirs]
        if not cells.keys().isdisjoint(columns)
    ]
    notes = [*_without_tolerance(columns)] if everything else []
    for entry in entries if everything else ():
        where = f"{entry.system} ({entry.source})"
        notes += [f"{where}, {kind}: {what}." for kind, what in entry.errata.items()]
    return ["system", *columns, "source"], rows, [*notes, CLAIM]


def _checkpoints(
    ours: Mapping[str, Mapping[str, float]],
) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield each run, after its checkpoint before finetuning if it was finetuned."""
    for name, metrics in ours.items():
        first = {
            metric.removesuffix(BEFORE): value
            for metric, value in metrics.items()
            if metric.endswith(BEFORE)
        }
        if first:
            yield f"{name}, before finetuning", first
        yield name, metrics


def _of_run(metrics: Mapping[str, float]) -> dict[str, str]:
    """Return the cells of a run by column."""
    columns = {metric.name: kind for kind, metric in KINDS.items() if metric.name}
    columns |= {f"{SIMILARITY}{file}": f"{SIMILARITY}{name}" for file, name in BENCHMARKS.items()}
    named = {columns.get(metric, metric): value for metric, value in metrics.items()}
    return {name: _cell(name, value) for name, value in named.items()}


def _of_entry(entry: Published, entries: Sequence[Published]) -> dict[str, str]:
    """Return the cells of a published system by column; with `entries`, their tolerances, too."""
    cells = {
        kind: _cell(kind, value, entry.deviations.get(kind))
        for kind, value in (entry.scores | entry.cells).items()
    }
    if entries:
        limits = {kind: tolerance(entries, entry, kind) for kind in cells}
        cells |= {
            kind: f"{cells[kind]} (± {_cell(kind, limit)})"
            for kind, limit in limits.items()
            if limit
        }
    if entry.parameters is not None:
        cells[PARAMETERS] = _cell(PARAMETERS, entry.parameters)
    similar = {f"{SIMILARITY}{name}": rho for name, rho in entry.similarity.items()}
    cells |= {name: _cell(name, rho) for name, rho in similar.items()}
    for author, numbers in entry.contexts.items():
        cells[f"contexts of {author}"] = ", ".join(map(str, numbers)) or "none"
    return cells


def _without_tolerance(columns: Sequence[str]) -> Iterator[str]:
    """Yield what the tolerances are, and a paragraph for each reason for none, with its columns."""
    yield (
        "In parentheses: how far a run with another seed may be from the number. Numbers without "
        f"them are exact, or have no such limit. Sizes may differ by {SIZES_DIFFER:.0%}."
    )
    for reason in dict.fromkeys(WITHOUT_TOLERANCE.values()):
        names = tuple(name for name, why in WITHOUT_TOLERANCE.items() if why == reason)
        found = [column for column in columns if column.startswith(names)]
        if found:
            yield f"Tolerance of {', '.join(found)}: {reason}."


def _cell(kind: str, value: float, deviation: float | None = None) -> str:
    special = ".4f" if kind.startswith(SIMILARITY) else ",.0f" if kind == PARAMETERS else ""
    form = special or paper_format(kind)
    numbers = [number for number in (value, deviation) if number is not None]
    return " ± ".join(f"{number:{form}}" for number in numbers)
