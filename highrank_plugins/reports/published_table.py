"""Show the papers' scores next to ours, with a column for each kind of score."""

from collections.abc import Iterator, Mapping, Sequence

from highrank_plugins.reports.tables import Cell, Table
from highrank_plugins.results.evaluations import BEFORE
from highrank_plugins.results.metrics import KINDS
from highrank_plugins.results.published import (
    PARAMETERS,
    SIMILARITY,
    SIZES_DIFFER,
    WITHOUT_TOLERANCE,
    Published,
    paper_format,
    read_published,
    tolerance,
)

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


def published_table(
    task: str, ours: Mapping[str, Mapping[str, float]], everything: bool = False
) -> Table:
    """Return a row for each system, ours first, and a column for each kind of score.

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
        list(map(Cell, [name, *(cells.get(column, "") for column in columns), source]))
        for name, cells, source in [*own, *theirs]
        if not cells.keys().isdisjoint(columns)
    ]
    notes = [*_without_tolerance(columns), *_errata(entries)] if everything else []
    # each note is a paragraph
    return Table("", ["system", *columns, "source"], rows, ["\n\n".join([*notes, CLAIM])])


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


def _errata(entries: Sequence[Published]) -> Iterator[str]:
    for entry in entries:
        for kind, what in entry.errata.items():
            yield f"{entry.system} ({entry.source}), {kind}: {what}."


def _cell(kind: str, value: float, deviation: float | None = None) -> str:
    special = ".4f" if kind.startswith(SIMILARITY) else ",.0f" if kind == PARAMETERS else ""
    form = special or paper_format(kind)
    numbers = [number for number in (value, deviation) if number is not None]
    return " ± ".join(f"{number:{form}}" for number in numbers)
