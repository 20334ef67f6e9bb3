"""Records of runs as a Markdown table, so that no number in a document is typed by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from highrank_plugins.experiments.distinct_names import distinct_names
from highrank_plugins.experiments.markdown import table
from highrank_plugins.experiments.record_file import load_record

Record = dict[str, Any]
Column = tuple[str, Callable[[Record], str]]

# metric → its heading and format; a table has the columns of the metrics that its records have
METRICS = {
    "sacrebleu": ("sacreBLEU", ".2f"),
    "chrf": ("chrF", ".2f"),
    "valid_perplexity": ("valid ppl", ".2f"),
    "test_perplexity": ("test ppl", ".2f"),
    "test_dynamic_perplexity": ("test ppl, dynamic", ".2f"),
    "test_cache_perplexity": ("test ppl, cache", ".2f"),
    "test_rank": ("rank", ",.0f"),
    "test_effective_rank_0.0001": ("ε-rank, 1e-4", ",.0f"),
    "test_kld": ("KLD", ".3f"),
    "test_top_5": ("top 5, %", ".2f"),
    "test_retention": ("retention", ".3f"),
    "word_similarity": ("word similarity", ".3f"),
}
OTHER: list[Column] = [
    ("updates", lambda record: f"{record['train']['updates']:,.0f}"),
    ("words/s in training", lambda record: f"{record['train']['words_per_second']:,.0f}"),
    ("cores", lambda record: str(record["hardware"]["cores"])),
    ("torch", lambda record: record["versions"]["torch"]),
    ("revision", lambda record: (record["git"] or {}).get("revision", "-")[:9]),
]


def read_record(path: Path) -> Record:
    """A file written by `highrank record`.

    Raises:
        ValueError: it is none; names it and what it lacks. OSError.
    """
    try:
        record: Record = load_record(path)
        if not metrics_of([record]):
            raise KeyError("metrics")
        for _, cell in OTHER:
            cell(record)
        return record
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: no record of a run ({error!r})") from None


def metrics_of(records: list[Record]) -> list[str]:
    """The known metrics that any of the records has, in the order of columns."""
    return [name for name in METRICS if any(name in record["metrics"] for record in records)]


def results_table(paths: list[Path]) -> str:
    """One row per record (written by `highrank record`), named by its file, see `distinct_names`.

    Raises:
        ValueError: a file that is no record; a file is given twice.
    """
    records = [read_record(path) for path in paths]
    metrics = metrics_of(records)
    headings = ["run", *(METRICS[name][0] for name in metrics), *(name for name, _ in OTHER)]
    rows = [
        [
            run,
            *(number(name, record["metrics"].get(name)) for name in metrics),
            *(cell(record) for _, cell in OTHER),
        ]
        for run, record in zip(distinct_names(paths), records, strict=True)
    ]
    return table(headings, rows)


def number(metric: str, value: float | None) -> str:
    """The value as this metric is printed; a dash where there is none."""
    return "–" if value is None else format(value, METRICS[metric][1])
