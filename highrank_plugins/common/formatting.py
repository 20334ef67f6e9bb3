"""Format numbers, tables and progress for people, and describe figures for `reports/plots.py`."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line feeds


def visible(text: str) -> str:
    """Return text that no terminal obeys: each control character as \\x1b or its like."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def short(value: float) -> str:
    """Return a number in three digits or so: 0.25, 1,200, 3e-07, ∞."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """Return 0.1234 as 12.3 %, with a space that does not break."""
    return f"{100 * share:.1f}\u00a0%"


def size(count: float) -> str:
    """Return a number of bytes in a unit that suits it: 1.4 GB, 20.5 MB, 3.0 kB."""
    for unit, one in (("GB", 1e9), ("MB", 1e6)):
        if count >= one:
            return f"{count / one:,.1f} {unit}"
    return f"{count / 1e3:.1f} kB"


def cell(text: object) -> str:
    """Return a stranger's text as one cell of a Markdown table; it ends no cell, row or page."""
    line = visible(re.sub(r"\s*[\r\n]+\s*", " ", str(text)))
    # code between backticks shows HTML as it is
    parts = re.split(r"(`[^`]*`)", re.sub(r"(?<!\\)\|", r"\\|", line))
    return "".join(part if part[:1] == "`" else part.replace("<", "&lt;") for part in parts)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table: a row per line, under a heading."""
    lines = [headings, ["---"] * len(headings), *rows]
    text = "".join(f"| {' | '.join(map(cell, cells))} |\n" for cells in lines)
    return text.replace("| --- |", "|---|").replace(" --- |", "---|")


Series: TypeAlias = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Lines:
    """Hold curves by label."""

    series: Mapping[str, Series]
    title: str
    axes: tuple[str, str]  # names along x and y, with units
    scale: str = "linear"  # or "log" (y), "logx", "loglog"
    dashed: tuple[str, ...] = ()  # labels of curves that are drawn dashed, such as thresholds
    ends: tuple[float | None, float | None] = (None, None)  # of the axis y; None: of the values


@dataclass(frozen=True)
class Bars:
    """Hold a bar for each label, or several side by side: name of the bars → label → height."""

    groups: Mapping[str, Mapping[str, float]]
    title: str
    axes: tuple[str, str]
    scale: str = "linear"
    ends: tuple[float | None, float | None] = (None, None)
    levels: Mapping[str, float] = field(default_factory=dict)  # label → y, a line across the bars


@dataclass(frozen=True)
class Scatter:
    """Draw points in groups: the runs of each system, and their mean."""

    groups: Mapping[str, Sequence[tuple[float, float]]]  # system → (x, y) of each run
    title: str
    axes: tuple[str, str]
    scale: str = "linear"
    connected: Sequence[Sequence[str]] = ()  # systems of one layer: a line joins their means
    # system without a place along x → its y, a line across the figure
    levels: Mapping[str, float] = field(default_factory=dict)


Figure: TypeAlias = Lines | Bars | Scatter


# (items, name) → the same items, shown as they are taken; for example `bar`
Progress: TypeAlias = Callable[[Sequence[Any], str], Iterable[Any]]


class _Lines:
    """Write each state of tqdm's bar as a line, where a bar cannot be redrawn."""

    def write(self, text: str) -> None:
        state = text.strip()
        if state:
            sys.stderr.write(f"{state}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def bar_options() -> dict[str, Any]:
    """Return arguments of `tqdm` for what may run longer than five seconds."""
    if sys.stderr.isatty():
        return {"file": sys.stderr, "delay": 5}
    return {"file": _Lines(), "delay": 5, "mininterval": 10, "ascii": True, "ncols": 78}


def bar(items: Sequence[Any], name: str) -> Iterable[Any]:
    """Return the items, with a bar for them."""
    from tqdm import tqdm

    return tqdm(items, name, **bar_options())


def silent(items: Sequence[Any], _name: str) -> Sequence[Any]:
    """Return the items and show nothing."""
    return items
