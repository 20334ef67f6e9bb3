"""Show the papers' scores next to ours, with a column for each kind of score."""

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
DEVIATIONS = 2.0  # tolerance of a repetition, in standard deviations over seeds


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
    """Return what papers report for a task, the name of its recipe.

    Raises:
        ValueError: there are no scores of it; the message has the nearest match, or all tasks.
    """
    tasks = read_tree(FILE).values
    if task not in tasks:
        near = did_you_mean(task, list(tasks)) or f"; known tasks: {', '.join(tasks)}"
        raise ValueError(f"no published scores of {task!r}{near}")
    return [Published.model_validate(entry) for entry in tasks[task]]


def tolerance(entries: Sequence[Published], entry: Published, kind: str) -> float:
    """Return how far a repetition with another seed may deviate from a score of an entry.

    This is twice the deviation over seeds: the entry's own, else the largest of this kind among the
    entries of the task. If no source gives one, it is a unit of the last printed digit.

    Raises:
        KeyError: the entry has no such score.
    """
    digits = int(re.findall(r"\d+", ALL_KINDS[kind][1])[0])
    own = entry.deviations.get(kind)
    known = [other.deviations[kind] for other in entries if kind in other.deviations]
    if own is None and not known:
        return 10.0**-digits
    return DEVIATIONS * (own if own is not None else max(known))


def table(task: str, ours: Mapping[str, Mapping[str, float]], everything: bool = False) -> str:
    """Return Markdown: a row for each system, ours first, and a column for each kind of score.

    Args:
        ours: name of a run → its metrics, as in its record, and its `parameters`.
        everything: also what none of our runs has: scores, times, word similarities and other
            cells. The errata follow, a paragraph each.
    """
    entries = read_published(task)
    own = [(name, _of_run(metrics), "this run") for name, metrics in _checkpoints(ours)]
    theirs = [(entry.system, _of_entry(entry), entry.source) for entry in entries]
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
    text = formatting.table(["system", *columns, "source"], rows)
    return "\n".join([text, *_errata(entries)]) if everything else text


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


def _of_entry(entry: Published) -> dict[str, str]:
    """Return the cells of a published system by column."""
    cells = {
        kind: _cell(kind, value, entry.deviations.get(kind))
        for kind, value in (entry.scores | entry.cells).items()
    }
    if entry.parameters is not None:
        cells[PARAMETERS] = _cell(PARAMETERS, entry.parameters)
    similar = {f"{SIMILARITY}{name}": rho for name, rho in entry.similarity.items()}
    cells |= {name: _cell(name, rho) for name, rho in similar.items()}
    for author, numbers in entry.contexts.items():
        cells[f"contexts of {author}"] = ", ".join(map(str, numbers)) or "none"
    return cells


def _errata(entries: Sequence[Published]) -> Iterator[str]:
    for entry in entries:
        for kind, what in entry.errata.items():
            yield f"{entry.system} ({entry.source}), {kind}: {what}.\n"


def _cell(kind: str, value: float, deviation: float | None = None) -> str:
    other = ".4f" if kind.startswith(SIMILARITY) else ".4g"
    form = ALL_KINDS.get(kind, (None, other))[1] if kind != PARAMETERS else ",.0f"
    numbers = [number for number in (value, deviation) if number is not None]
    return " ± ".join(f"{number:{form}}" for number in numbers)
