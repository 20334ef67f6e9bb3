"""Hold the measurement of one implementation in one case: in CSV files and tables."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from highrank_plugins.common import formatting
from highrank_plugins.common.files import write_text
from highrank_plugins.common.provenance import revision, typed_command


@dataclass(frozen=True)
class Row:
    """Hold one measurement.

    `spread` is half the distance between the quartiles, relative to the median; `over_baseline`
    the median over that of the baseline, both measured in turns in one process; `memory` the peak
    in bytes above what was there before the call, None where it cannot be read. `processor` is the
    median of the processor time in ms, of all threads, which other programs do not change.
    """

    case: str
    implementation: str
    tokens: int
    milliseconds: float
    spread: float
    baseline: str
    over_baseline: float
    memory: int | None
    threads: int
    repeats: int
    machine: str  # processor or GPU, threads, dtype, versions
    revision: str = ""  # see `provenance.revision`; older files lack these three columns
    command: str = ""
    processor: float | None = None

    @classmethod
    def of(cls, names: tuple[str, str, str], tokens: int, measured: Mapping[str, Any]) -> Row:
        """Return a row from what `measuring.measured` found."""
        case, implementation, baseline = names
        seconds = measured["seconds"]
        median = statistics.median(seconds)
        low, high = seconds[0], seconds[0]
        if len(seconds) > 1:
            low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(
            case=case,
            implementation=implementation,
            tokens=tokens,
            milliseconds=round(1e3 * median, 3),
            spread=round((high - low) / 2 / median, 4),
            baseline=baseline,
            over_baseline=round(median / statistics.median(measured["baseline_seconds"]), 4),
            memory=measured["memory"],
            threads=measured["threads"],
            repeats=len(seconds),
            machine=measured["machine"],
            processor=round(1e3 * statistics.median(measured["processor_seconds"]), 3),
            revision=revision(),
            command=typed_command(),
        )


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Write one line per row, under a heading."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[Row]:
    """Read what `write_csv` wrote."""
    adapter, rows = TypeAdapter(Row), list[Row]()
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        try:
            for line in reader:
                empty = {name: line.get(name) or None for name in ("memory", "processor")}
                rows.append(adapter.validate_python(line | empty))
        except (csv.Error, ValueError):  # ValidationError is a ValueError
            rows.clear()
    if not rows:
        raise ValueError(f"{path}:{reader.line_num}: holds no measurement as --csv writes them")
    return rows


def table(rows: list[Row]) -> str:
    """Return Markdown, one line per row.

    "× naive" compares times relative to the baseline of each process, since the machine may be
    slower during one process than during another.
    """
    naive = {row.case: row for row in rows if row.implementation == "naive"}
    baseline = rows[0].baseline if rows else "baseline"
    headings = ["case", "implementation", "tokens", "ms", "±", f"× {baseline}", "MiB"]
    headings += ["× naive, time", "× naive, memory"] if naive else []
    if timed := any(row.processor is not None for row in rows):
        headings.insert(4, "processor ms")
    lines = []
    for row in rows:
        cells = [
            row.case,
            row.implementation,
            f"{row.tokens:,}",
            f"{row.milliseconds:,.1f}",
            f"{100 * row.spread:.0f} %",
            f"{row.over_baseline:.2f}",
            "-" if row.memory is None else f"{row.memory / 2**20:,.0f}",
        ]
        if timed:
            cells.insert(4, "-" if row.processor is None else f"{row.processor:,.1f}")
        if own := naive.get(row.case):
            memory = f"1/{own.memory / row.memory:.1f}" if row.memory and own.memory else "-"
            cells += [f"{row.over_baseline / own.over_baseline:.2f}", memory]
        lines.append([*cells, *["-"] * (len(headings) - len(cells))])
    return formatting.table(headings, lines)
