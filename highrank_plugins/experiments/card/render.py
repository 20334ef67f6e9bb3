"""A card as one HTML page that needs nothing else."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from highrank_plugins.experiments.card import charts
from highrank_plugins.experiments.card.axes import short
from highrank_plugins.experiments.card.contents import (
    Absent,
    BandFound,
    Card,
    Gates,
    PointwiseShape,
    Predictions,
    PriorUse,
    SpectrumFound,
)

TEMPLATE = "card.html"


def render(card: Card) -> str:
    """The page: HTML with its style and its charts inside, and no script."""
    environment = Environment(
        loader=PackageLoader("highrank_plugins.experiments.card", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short, "value": _value, "share": _share}
    environment.tests["absent"] = lambda thing: isinstance(thing, Absent)
    return environment.get_template(TEMPLATE).render(
        **{field.name: getattr(card, field.name) for field in fields(card)},
        total=sum(part.parameters for part in card.parameters),
        charts=_charts(card),
    )


def _charts(card: Card) -> dict[str, Markup]:
    """By section, of those that are there."""
    drawing: dict[str, Any] = {
        "weight_spectrum": _spectrum_chart,
        "log_prob_spectrum": _spectrum_chart,
        "prior_use": _prior_chart,
        "gates": _gates_chart,
        "pointwise": _pointwise_charts,
        "predictions": _top_k_chart,
        "bands": _bands_chart,
    }
    found = {name: getattr(card, name) for name in drawing}
    return {
        name: drawing[name](value) for name, value in found.items() if not isinstance(value, Absent)
    }


def _spectrum_chart(found: SpectrumFound) -> Markup:
    largest = found.values[0]
    places, values = charts.thinned([value / largest for value in found.values])
    level = found.tolerance / largest
    lines = [
        charts.Line("singular values", places, values),
        charts.Line("Press tolerance", [places[0], places[-1]], [level] * 2, dashed=True),
    ]
    return charts.line_chart("Spectrum", "i", "σᵢ / σ₁ (logarithmic)", lines, log=True)


def _prior_chart(use: PriorUse) -> Markup:
    labels = [str(k + 1) for k in range(len(use.mean_prior))]
    bars = [charts.Bars("mean πₖ", use.mean_prior), charts.Bars("share on top", use.top_share)]
    return charts.bar_chart("Components", "component k", "share", labels, bars)


def _gates_chart(gates: Gates) -> Markup:
    labels = [f"{group.first:,}–{group.last - 1:,}" for group in gates.groups]
    bars = [
        charts.Bars("entropy / log K", [group.entropy / gates.highest for group in gates.groups]),
        charts.Bars("largest π", [group.largest for group in gates.groups]),
    ]
    return charts.bar_chart("Gates", "classes, most frequent first", "mean", labels, bars)


def _pointwise_charts(shape: PointwiseShape) -> Markup:
    lines = [
        charts.Line(shape.name, shape.z, shape.f),
        charts.Line("identity", [shape.z[0], shape.z[-1]], [shape.z[0], shape.z[-1]], dashed=True),
    ]
    drawn = charts.line_chart("Curve", "z", "f(z) − f(0)", lines)
    if shape.slopes is None:
        return drawn
    labels = [short(edge) for edge in shape.edges[:-1]]
    counts = [charts.Bars("cells", shape.histogram)]
    label = "slope from"
    return drawn + charts.bar_chart("Histogram of slopes", label, "number of cells", labels, counts)


def _top_k_chart(found: Predictions) -> Markup:
    bars = [charts.Bars("share", list(found.top_k.values()))]
    labels = [f"top {k}" for k in found.top_k]
    return charts.bar_chart("Right word among the top k", "", "share of tokens", labels, bars)


def _bands_chart(bands: list[BandFound]) -> Markup:
    there = [band for band in bands if band.perplexity is not None]
    heights = [charts.Bars("perplexity", [band.perplexity or 0.0 for band in there])]
    title, label = "Perplexity by frequency", "count of the word in training, from"
    names = [band.name.partition("–")[0] for band in there]
    return charts.bar_chart(title, label, "perplexity (logarithmic)", names, heights, log=True)


def _value(value: Any) -> str:
    """A configured value: yes, 0.1, a list with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _share(value: float) -> str:
    """0.1234 as 12.3 %, which stays on one line."""
    return f"{100 * value:.1f}\u00a0%"
