"""Write rows as a Markdown table and a plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from highrank_plugins.benchmarks.case import CaseError
from highrank_plugins.benchmarks.rows import Row
from highrank_plugins.common import formatting
from highrank_plugins.reports.plots import check_plot


def table(rows: list[Row]) -> str:
    """Return Markdown, one line per row.

    "× naive" compares times relative to the baseline of each process, since the machine may be
    slower during one process than during another.
    """
    naive = {row.case: row for row in rows if row.implementation == "naive"}
    baseline = rows[0].baseline if rows else "baseline"
    headings = ["case", "implementation", "tokens", "ms", "±", f"× {baseline}", "MiB"]
    headings += ["× naive, time", "× naive, memory"] if naive else []
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
        if naive:
            cells += _against(row, naive.get(row.case))
        lines.append(cells)
    return formatting.table(headings, lines)


def _against(row: Row, naive: Row | None) -> list[str]:
    if naive is None:
        return ["-", "-"]
    memory = f"1/{naive.memory / row.memory:.1f}" if row.memory and naive.memory else "-"
    return [f"{row.over_baseline / naive.over_baseline:.2f}", memory]


def check_outputs(csv: Path | None, plot: Path | None) -> None:
    """Refuse files that could not be written, before an hour of measurements is spent."""
    for option, path in (("--csv", csv), ("--plot", plot)):
        if path is not None and not path.resolve().parent.is_dir():
            raise CaseError(f"{option} {path}: the folder {path.parent} is missing")
        if path is not None and path.is_dir():
            raise CaseError(f"{option} {path} is a folder; name a file")
    check_plot(plot)


def plot(rows: list[Row], size: Callable[[Row], int], label: str, path: Path) -> None:
    """Plot time and memory of each implementation against a size, with logarithmic axes.

    Args:
        size: what is on the x axis, called `label`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for implementation in dict.fromkeys(row.implementation for row in rows):
        own = sorted((row for row in rows if row.implementation == implementation), key=size)
        x = [size(row) for row in own]
        time.plot(x, [row.milliseconds for row in own], marker="o", label=implementation)
        memory.plot(x, [(row.memory or 0) / 2**20 for row in own], marker="o", label=implementation)
    for axes, title in ((time, "time, ms"), (memory, "peak memory, MiB")):
        axes.set(title=title, xlabel=label, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    time.legend()
    figure.savefig(path)
