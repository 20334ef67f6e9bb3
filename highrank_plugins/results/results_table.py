"""Show records of runs as a Markdown table, so that no number is typed by hand."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from highrank_plugins.common.formatting import table
from highrank_plugins.common.names import distinct_names
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import Column
from highrank_plugins.results.doubts import Record, systems_below_floor
from highrank_plugins.results.provenance_notes import doubt_notes, incomparable, texts
from highrank_plugins.results.record import RESULTS, load_record, refuse_repeated_runs

TableColumn = tuple[str, Callable[[Record], str]]


# columns of every table
SCORES = (
    Column("sacrebleu", "sacreBLEU", ".2f"),
    Column("chrf", "chrF", ".2f"),
    Column("train_perplexity", "train ppl", ".2f"),
    Column("valid_perplexity_before_finetuning", "valid ppl before finetuning", ".2f"),
    Column("test_perplexity_before_finetuning", "test ppl before finetuning", ".2f"),
    Column("valid_perplexity", "valid ppl", ".2f"),
    Column("test_perplexity", "test ppl", ".2f"),
)
OTHER: list[TableColumn] = [
    ("updates", lambda record: f"{record['train']['updates']:,.0f}"),
    ("words/s in training", lambda record: f"{record['train']['words_per_second']:,.0f}"),
    ("cores", lambda record: str(record["hardware"]["cores"])),
    ("torch", lambda record: record["versions"]["torch"]),
    ("revision", lambda record: str((record["git"] or {}).get("revision") or "-")[:9]),
]
# the last sentence of a table of single runs
CLAIM = (
    "What can be claimed: not which system is better, since the seeds of one system differ, too; "
    "`highrank compare` tests them."
)
NO_CLAIM = "What can be claimed: nothing, since the notes above name scores that do not compare."
# columns that are shown if a record has them
COSTS = {"parameters": "parameters", "s/epoch": "seconds_per_epoch"}


def read_records(paths: list[Path], run: Sequence[str] = ("config", "seeds")) -> list[Record]:
    """Return the records of different runs.

    Args:
        run: keys that identify a run; no two records may agree in all of them.
    """
    records = [load_record(path, complete=True) for path in paths]
    refuse_repeated_runs(paths, records, run)
    return records


@cache
def metrics() -> dict[str, Column]:
    """Return the columns of the metrics that tables show, by metric, in their order."""
    of_measures = [measure.columns for measure in all_measures().values()]
    return {column.metric: column for columns in (SCORES, *of_measures) for column in columns}


def metrics_of(records: list[Record]) -> list[str]:
    """Return the known metrics that any of the records has, in the order of columns."""
    return [name for name in metrics() if any(name in record["metrics"] for record in records)]


def results_table(paths: list[Path]) -> str:
    """Return a row per record, named by its file, or by its folder if that is `results.json`.

    Args:
        paths: written by `highrank results record`; see `distinct_names`.
    """
    records = read_records(paths, ("config", "seeds", "git"))
    shown = metrics_of(records)
    costs = {
        heading: name
        for heading, name in COSTS.items()
        if any(name in record["train"] for record in records)
    }
    headings = ["run", *(metrics()[name].heading for name in shown), *costs]
    headings += [name for name, _ in OTHER]
    runs = dict(zip(distinct_names(paths, RESULTS), records, strict=True))
    rows = [
        [
            run,
            *(number(name, record["metrics"].get(name)) for name in shown),
            *(_cost(record["train"].get(name)) for name in costs.values()),
            *(cell(record) for _, cell in OTHER),
        ]
        for run, record in runs.items()
    ]
    systems = {run: [record] for run, record in runs.items()}
    apart = list(filter(None, [*incomparable(systems), texts(systems)]))
    claim = NO_CLAIM if apart or systems_below_floor(systems) else CLAIM
    notes = [*doubt_notes(systems), *apart, *[claim][: len(rows) - 1]]
    return table(headings, rows) + "".join(f"\n{note}\n" for note in notes)


def _cost(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def column(metric: str) -> Column:
    """Return the column of a metric; one that no measure knows is headed by its name."""
    return metrics().get(metric) or Column(metric, metric, ".4g")


def number(metric: str, value: float | None) -> str:
    """Return the value as this metric is printed; a dash if there is none."""
    return "–" if value is None else format(value, column(metric).format)
