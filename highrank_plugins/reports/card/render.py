"""Render a card as one HTML page that needs nothing else."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from highrank_plugins.common.formatting import percent
from highrank_plugins.reports import plots
from highrank_plugins.reports.card.describe import Absent
from highrank_plugins.reports.card.gather import Card


def render(card: Card) -> str:
    """Return the page: HTML with its style and its figures inside, and no script."""
    environment = Environment(
        loader=PackageLoader("highrank_plugins.reports.card", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # matplotlib has already escaped the texts
    drawn = {"drawn": lambda figure: Markup(plots.svg(figure))}
    environment.filters |= {"value": _value, "share": percent, **drawn}
    environment.tests["absent"] = lambda thing: isinstance(thing, Absent)
    return environment.get_template("card.html").render(
        **vars(card),
        total=sum(part["parameters"] for part in card.parameters),
        with_figures=plots.is_available(),
    )


def _value(value: Any) -> str:
    """Return a configured value: yes, 0.1, a list with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
