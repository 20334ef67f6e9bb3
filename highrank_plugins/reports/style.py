"""Give all plots one style: a colour for each layer, a marker for each variant, separated labels.

Colours are those of Okabe and Ito, which people with any colour vision tell apart. The background
is opaque, so that a figure reads the same on a light and on a dark page.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Box: TypeAlias = tuple[float, float, float, float]  # left, low, right, high

COLOURS = {
    "softmax": "#4d4d4d",
    "sigsoftmax": "#56b4e9",
    "gss": "#009e73",
    "plif": "#cc79a7",
    "moc": "#e69f00",
    "mos": "#0072b2",
    "mixtape": "#d55e00",
}
_OTHER = "#999999"
_LABEL = "#333333"
_MARKERS = "osD^vP*X<>"
STYLE = {
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "svg.hashsalt": "highrank_plugins",
}
# directions of a label around its point, the preferred first
_DIRECTIONS = [(1, 0.4), (-1, 0.4), (1, -0.8), (-1, -0.8), (0, 1), (0, -1.4), (1, 1.2), (-1, 1.2)]
_RADII = (6, 14, 24, 36, 50, 66)


def literal(text: str) -> str:
    """Return a name as matplotlib draws it letter by letter; two dollars would begin a formula."""
    return text.replace("$", r"\$")


def layer_of(system: str) -> str:
    """Return the layer that a system is named after, or its first word."""
    words = re.split(r"[^a-z]+", system.lower())
    return next((word for word in words if word in COLOURS), words[0])


def colour_of(system: str) -> str:
    """Return the colour of a system's layer; grey for others."""
    return COLOURS.get(layer_of(system), _OTHER)


def markers_of(systems: Sequence[str]) -> dict[str, str]:
    """Return a marker for each system: one for each variant, the layers' own first."""
    rest = {system: system.lower().replace(layer_of(system), "", 1) for system in systems}
    # option values do not matter
    variants = {name: re.sub(r"[\d.]+", "", text).strip("_-=+. ") for name, text in rest.items()}
    order = sorted({*variants.values()}, key=lambda variant: (variant != "", variant))
    return {name: _MARKERS[order.index(of) % len(_MARKERS)] for name, of in variants.items()}


def place_labels(
    plot: Any,
    labels: Mapping[str, tuple[float, float]],
    obstacles: Iterable[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> None:
    """Write each label beside its point where it covers no other label and no obstacle.

    Limits and scales of the axes are final. An obstacle has two corners, as an error bar has ends.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(plot.figure)
    canvas.draw()
    renderer, to_points = canvas.get_renderer(), 72 / plot.figure.dpi
    places = {text: plot.transData.transform(place) for text, place in labels.items()}
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in places.values()]
    for corners in obstacles:
        (a, b), (c, d) = plot.transData.transform(corners)
        taken.append((min(a, c) - 3, min(b, d) - 3, max(a, c) + 3, max(b, d) + 3))
    inside = plot.get_window_extent(renderer)
    for text, (x, y) in places.items():
        note = plot.annotate(
            literal(text), labels[text], (0, 0), textcoords="offset points", fontsize=8,
            color=_LABEL, annotation_clip=False,
        )  # fmt: skip
        size = note.get_window_extent(renderer)
        box: Box = (x + 6, y + 3, x + 6 + size.width, y + 3 + size.height)
        for radius, (right, up) in itertools.product(_RADII, _DIRECTIONS):  # the nearest first
            width = size.width if right < 0 else size.width / 2 if right == 0 else 0
            left, low = x + radius * right - width, y + radius * up
            a = left, low, left + size.width, low + size.height
            fits = inside.x0 <= a[0] and a[2] <= inside.x1 + 40 and a[3] <= inside.y1 + 8
            overlaps = (a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in taken)
            if fits and a[1] >= inside.y0 and not any(overlaps):
                box = a
                break
        taken.append(box)
        note.set_position(((box[0] - x) * to_points, (box[1] - y) * to_points))


def number_log_axis(axis: Any) -> None:
    """Write numbers such as 200 and 3,000 at a logarithmic axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    steps = (1, 2, 5) if low > 0 and high / low < 300 else (1,)
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
