"""Measurements as a Markdown table, a CSV file and a plot."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from .case import CaseError
from .process import Measurement


def table(measurements: list[Measurement], baseline: str, work: dict[tuple[str, str], int]) -> str:
    """Markdown, one row per measurement.

    "× usual" compares times by what each took over the baseline of its own process, since a
    machine may be slower while one process runs than while another does.

    Args:
        baseline: its name, for the heading.
        work: tokens of each case and contender.
    """
    usual = {m.case: m for m in measurements if m.contender == "usual"}
    rows = [
        f"| case | contender | tokens | ms | ± | × {baseline} | MiB "
        + ("| × usual, time | × usual, memory |" if usual else "|"),
        "|---" * (9 if usual else 7) + "|",
    ]
    for m in measurements:
        cells = [
            m.case,
            m.contender,
            f"{work[m.case, m.contender]:,}",
            f"{1e3 * m.median:,.1f}",
            f"{100 * m.spread:.0f} %",
            f"{m.over_baseline:.2f}",
            "-" if m.memory is None else f"{m.memory / 2**20:,.0f}",
        ]
        if usual:
            cells += _against(m, usual.get(m.case))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _against(m: Measurement, usual: Measurement | None) -> list[str]:
    if usual is None:
        return ["-", "-"]
    memory = f"1/{usual.memory / m.memory:.1f}" if m.memory and usual.memory else "-"
    return [f"{m.over_baseline / usual.over_baseline:.2f}", memory]


def write_csv(measurements: Iterable[Measurement], path: Path) -> None:
    """One line per measurement, seconds and bytes in full."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            "case contender median_seconds spread baseline_median_seconds over_baseline "
            "peak_bytes threads repeats".split()
        )
        for m in measurements:
            writer.writerow([
                m.case, m.contender, m.median, m.spread, statistics.median(m.baseline_seconds),
                m.over_baseline, m.memory, m.threads, len(m.seconds),
            ])  # fmt: skip


def check_outputs(csv: Path | None, plot: Path | None) -> None:
    """Refuse files that could not be written, before an hour of measurements is spent.

    Raises:
        CaseError: names the option.
    """
    for option, path in (("--csv", csv), ("--plot", plot)):
        if path is not None and not path.resolve().parent.is_dir():
            raise CaseError(f"{option} {path}: there is no folder {path.parent}")
    if plot is None:
        return
    if find_spec("matplotlib") is None:
        raise CaseError("--plot needs matplotlib: pip install 'highrank_plugins[plot]'")
    from matplotlib.figure import Figure

    known = Figure().canvas.get_supported_filetypes()
    if plot.suffix.removeprefix(".") not in known:
        raise CaseError(f"--plot {plot}: the file's ending must be one of {', '.join(known)}")


def plot(measurements: list[Measurement], sizes: dict[str, int], label: str, path: Path) -> None:
    """Time and memory of each contender against a size, both axes logarithmic.

    Args:
        sizes: case → what is on the x axis, called `label`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for contender in dict.fromkeys(m.contender for m in measurements):
        own = sorted((m for m in measurements if m.contender == contender),
                     key=lambda m: sizes[m.case])  # fmt: skip
        x = [sizes[m.case] for m in own]
        time.plot(x, [1e3 * m.median for m in own], marker="o", label=contender)
        memory.plot(x, [(m.memory or 0) / 2**20 for m in own], marker="o", label=contender)
    for axes, title in ((time, "time, ms"), (memory, "peak memory, MiB")):
        axes.set(title=title, xlabel=label, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    time.legend()
    figure.savefig(path)
