"""Record the measurement of one implementation in one case, and keep it in CSV files."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from pydantic import TypeAdapter

from highrank_plugins.common.files import write_text


@dataclass(frozen=True)
class Row:
    """Hold one measurement.

    `spread` is half the distance between the quartiles, relative to the median; `over_baseline`
    the median over that of the baseline, both measured in turns in one process; `memory` the peak
    in bytes above what was there before the call, None where it cannot be read.
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
    revision: str = ""  # see `provenance.revision`; older files lack these two columns
    command: str = ""


def row(
    case: str,
    implementation: str,
    tokens: int,
    baseline: str,
    seconds: list[float],
    baseline_seconds: list[float],
    memory: int | None,
    threads: int,
    machine: str,
    revision: str = "",
    command: str = "",
) -> Row:
    """Return a row from the seconds of each repetition."""
    median = statistics.median(seconds)
    low, high = seconds[0], seconds[0]
    if len(seconds) > 1:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Row(
        case=case,
        implementation=implementation,
        tokens=tokens,
        milliseconds=round(1e3 * median, 3),
        spread=round((high - low) / 2 / median, 4),
        baseline=baseline,
        over_baseline=round(median / statistics.median(baseline_seconds), 4),
        memory=memory,
        threads=threads,
        repeats=len(seconds),
        machine=machine,
        revision=revision,
        command=command,
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
    adapter = TypeAdapter(Row)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        needed = {field.name for field in fields(Row) if field.default is MISSING}
        missing = needed - set(reader.fieldnames or ())
        if missing:
            raise ValueError(
                f"{path}: not a file written by --csv: it lacks {', '.join(sorted(missing))}"
            )
        lines = list(reader)
    if not lines:
        raise ValueError(f"{path}: the file holds no measurements")
    return [
        adapter.validate_python({**line, "memory": line.get("memory") or None}) for line in lines
    ]
