"""Show the papers' scores next to ours, with a column for each kind of score."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from highrank_plugins.common import formatting
from highrank_plugins.common.names import did_you_mean
from highrank_plugins.common.yaml_tree import read_tree
from highrank_plugins.results.perplexity import BEFORE

FILE = Path(__file__).with_suffix(".yaml")
# kind of score → name of the metric in our records, where we compute it, and its format
KINDS: dict[str, tuple[str | None, str]] = {
    "sacrebleu": ("sacrebleu", ".1f"),
    "tokenised": ("bleu_tokenised", ".1f"),
    "compound_split": ("bleu_compound_split", ".1f"),
    "unstated": (None, ".1f"),
    "valid ppl": ("valid_perplexity", ".2f"),
    "test ppl": ("test_perplexity", ".2f"),
    "test ppl (cache)": ("test_cache_perplexity", ".2f"),
    "test ppl (dynamic)": ("test_dynamic_perplexity", ".2f"),
    "rank": ("test_rank", ",.0f"),
    "valid bits": ("valid_bits", ".2f"),
    "test bits": ("test_bits", ".2f"),
    "BLEU-4 precision": ("bleu4_precision", ".3f"),
    "BLEU-4 recall": ("bleu4_recall", ".3f"),
}
# scores that have a column only if one of our runs has them, or with `everything`
DETAILS: dict[str, tuple[str | None, str]] = {
    "train ppl": ("train_perplexity", ".2f"),
    "valid ppl (cache)": ("valid_cache_perplexity", ".2f"),
    "valid ppl (dynamic)": ("valid_dynamic_perplexity", ".2f"),
    "test ppl (10 seeds)": (None, ".2f"),
    "train bits": ("train_bits", ".2f"),
    "valid rank": ("valid_rank", ",.0f"),
    "ε-rank (1e-3)": ("test_effective_rank_0.001", ",.0f"),
    "ε-rank (1e-4)": ("test_effective_rank_0.0001", ",.0f"),
    "ε-rank (1e-5)": ("test_effective_rank_1e-05", ",.0f"),
    "valid KLD": ("valid_kld", ".3f"),
    "KLD": ("test_kld", ".3f"),
    **{
        f"BLEU-{order} {name}": (f"bleu{order}_{name}", ".3f")
        for order in (1, 2, 3)
        for name in ("precision", "recall")
    },
}
ALL_KINDS = KINDS | DETAILS
PARAMETERS = "parameters"
SCORES = dict.fromkeys([*ALL_KINDS, PARAMETERS])  # in the order of the columns
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
    "vocabulary only; `highrank compare --paper` tests the numbers that compare.\n"
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
    """Hold one system of one source: its scores by kind, and where each is printed.

    Attributes:
        table: the table or figure with the scores and cells.
        deviations: standard deviations of scores over seeds.
        conf: the recipe's configuration that repeats the training run.
        parameters: of the model, where the source states them or they follow from its sizes.
        seeds: number of runs behind the deviations.
        elsewhere: kind or cell → another table that prints it.
        also: further tables that print the scores again.
        cells: numbers that our records do not have: times, slowdowns, p-values, slopes.
        similarity: benchmark of word similarity → Spearman's ρ.
        contexts: who chose the contexts → numbers of those whose next word is in the top 5.
        errata: kind or cell → what is wrong or uncertain in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str
    source: str
    table: str
    scores: dict[str, float] = {}
    deviations: dict[str, float] = {}
    conf: str | None = None
    parameters: float | None = None
    seeds: int = 1
    elsewhere: dict[str, str] = {}
    also: list[str] = []
    cells: dict[str, float] = {}
    similarity: dict[str, float] = {}
    contexts: dict[str, list[int]] = {}
    errata: dict[str, str] = {}

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


def tolerance(entries: Sequence[Published], entry: Published, kind: str) -> float | None:
    """Return how far a repetition with another seed may deviate from a number of an entry.

    This is twice the deviation over seeds: the entry's own, else the largest of this kind among the
    entries of the task, relative to their scores, else that of `SPREADS`. Deviations of ranks
    depend on the layer, so only those of the same layer count. A gain has the tolerance of a
    difference of two perplexities.

    Returns:
        None for the numbers of `WITHOUT_TOLERANCE`.
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


def table(task: str, ours: Mapping[str, Mapping[str, float]], everything: bool = False) -> str:
    """Return Markdown: a row for each system, ours first, and a column for each kind of score.

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
    wanted = KINDS.keys() | (measured & SCORES.keys())
    if everything:
        wanted |= published.keys()
    known = published.keys() | (measured & KINDS.keys())
    columns = [name for name in dict.fromkeys([*SCORES, *published]) if name in wanted & known]
    rows = (
        [name, *(cells.get(column, "") for column in columns), source]
        for name, cells, source in [*own, *theirs]
        if not cells.keys().isdisjoint(columns)
    )
    parts = [formatting.table(["system", *columns, "source"], rows)]
    if everything:
        parts += [*_without_tolerance(columns), *_errata(entries)]
    return "\n".join([*parts, CLAIM])


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
    columns = {metric: kind for kind, (metric, _) in ALL_KINDS.items()}
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
        f"them are exact, or have no such limit. Sizes may differ by {SIZES_DIFFER:.0%}.\n"
    )
    for reason in dict.fromkeys(WITHOUT_TOLERANCE.values()):
        names = tuple(name for name, why in WITHOUT_TOLERANCE.items() if why == reason)
        found = [column for column in columns if column.startswith(names)]
        if found:
            yield f"Tolerance of {', '.join(found)}: {reason}.\n"


def _errata(entries: Sequence[Published]) -> Iterator[str]:
    for entry in entries:
        for kind, what in entry.errata.items():
            yield f"{entry.system} ({entry.source}), {kind}: {what}.\n"


def _cell(kind: str, value: float, deviation: float | None = None) -> str:
    other = ".4f" if kind.startswith(SIMILARITY) else ".4g"
    form = ALL_KINDS.get(kind, (None, other))[1] if kind != PARAMETERS else ",.0f"
    numbers = [number for number in (value, deviation) if number is not None]
    return " ± ".join(f"{number:{form}}" for number in numbers)
