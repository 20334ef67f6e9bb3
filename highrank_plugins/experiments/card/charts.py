"""Small charts as inline SVG: they follow the page's colours, and read on a phone.

All are drawn 360 units wide and take the width of their column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from highrank_plugins.experiments.card.axes import Axis, linear, logarithmic, short

WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 342, 10, 186  # of the plot itself
MOST_POINTS = 300  # of a line; more would not be seen


class Line(NamedTuple):
    """Points joined by a line; `dashed` for what is there to compare with."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False


class Bars(NamedTuple):
    """A height for each label."""

    name: str
    heights: Sequence[float]


def line_chart(
    title: str, x_label: str, y_label: str, lines: Sequence[Line], log: bool = False
) -> Markup:
    """Lines in one frame; `log`: the y axis is logarithmic."""
    x = linear([v for line in lines for v in line.x], LEFT, RIGHT)
    heights = [v for line in lines for v in line.y]
    y = logarithmic(heights, BOTTOM, TOP) if log else linear(heights, BOTTOM, TOP)
    drawn = [_line(index, line, x, y) for index, line in enumerate(lines)]
    ticks = [_x_tick(x.place(value), short(value)) for value in x.ticks()]
    names = [line.name for line in lines]
    return _figure(title, (x_label, y_label), names, _grid(y), ticks, drawn)


def bar_chart(
    title: str,
    x_label: str,
    y_label: str,
    labels: Sequence[str],
    series: Sequence[Bars],
    log: bool = False,
) -> Markup:
    """Bars side by side for each label, from 0 up; `log`: from 1 up, on a logarithmic axis."""
    heights = [v for bars in series for v in bars.heights]
    y = logarithmic([1, *heights], BOTTOM, TOP) if log else linear([0, *heights], BOTTOM, TOP)
    room = (RIGHT - LEFT) / len(labels)
    width = room * 0.8 / len(series)
    drawn = []
    for index, bars in enumerate(series):
        for place, (label, height) in enumerate(zip(labels, bars.heights, strict=True)):
            x = LEFT + room * (place + 0.1) + width * index
            name = Markup("<title>{}: {} {}</title>").format(label, bars.name, short(height))
            drawn.append(_rectangle(index, x, y.place(height), width, name))
    every = max(1, -(-max(map(len, labels)) * 6 * len(labels) // (RIGHT - LEFT)))
    ticks = [
        _x_tick(LEFT + room * (place + 0.5), label)
        for place, label in enumerate(labels)
        if place % every == 0
    ]
    names = [bars.name for bars in series]
    return _figure(title, (x_label, y_label), names, _grid(y), ticks, drawn)


def thinned(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Places 1, 2, … and values, every place at first, then fewer: the eye sees no difference."""
    count = len(values)
    if count <= MOST_POINTS:
        return list(range(1, count + 1)), list(values)
    kept = sorted({round(i * (count - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})
    return [place + 1 for place in kept], [values[place] for place in kept]


def _line(index: int, line: Line, x: Axis, y: Axis) -> Markup:
    points = " ".join(f"{x.place(a)},{y.place(b)}" for a, b in zip(line.x, line.y, strict=True))
    dashes = "dashed" if line.dashed else ""
    return Markup('<polyline class="line c{} {}" points="{}"/>').format(index, dashes, points)


def _rectangle(index: int, x: float, top: float, width: float, name: Markup) -> Markup:
    place = (index, round(x, 1), top, round(width, 1), round(BOTTOM - top, 1), name)
    text = '<rect class="bar c{}" x="{}" y="{}" width="{}" height="{}">{}</rect>'
    return Markup(text).format(*place)


def _grid(y: Axis) -> list[Markup]:
    line = Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>')
    text = Markup('<text class="tick" text-anchor="end" x="{}" y="{}">{}</text>')
    marks = []
    for value in y.ticks():
        place = y.place(value)
        marks += [
            line.format(LEFT, RIGHT, place, place),
            text.format(LEFT - 4, place + 4, short(value)),
        ]
    return marks


def _x_tick(place: float, label: str) -> Markup:
    text = '<text class="tick" text-anchor="middle" x="{}" y="{}">{}</text>'
    return Markup(text).format(round(place, 1), BOTTOM + 14, label)


def _figure(
    title: str,
    labels: tuple[str, str],
    names: Sequence[str],
    *parts: Sequence[Markup],
) -> Markup:
    frame = Markup(
        '<svg viewBox="0 0 {w} {h}" role="img" aria-label="{title}; {y} over {x}: {names}">'
        '<text class="label" text-anchor="middle" x="{middle}" y="{h2}">{x}</text>{parts}'
        '<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/></svg>'
    ).format(
        w=WIDTH, h=HEIGHT, h2=BOTTOM + 34, middle=(LEFT + RIGHT) / 2,
        left=LEFT, right=RIGHT, bottom=BOTTOM,
        title=title, x=labels[0], y=labels[1], names=", ".join(names),
        parts=Markup("").join(part for group in parts for part in group),
    )  # fmt: skip
    keys = Markup("").join(
        Markup('<span class="key c{}">{}</span> ').format(index, name)
        for index, name in enumerate(names if len(names) > 1 else [])
    )
    return Markup(
        "<figure><figcaption>{}<small>{}</small></figcaption>{}<p>{}</p></figure>"
    ).format(title, labels[1], frame, keys)
