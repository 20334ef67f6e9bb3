"""Render a card as one HTML page that needs nothing else."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from highrank_plugins.common.formatting import Figure, percent
from highrank_plugins.reports import plots
from highrank_plugins.reports.card.contents import Absent, Card

TEMPLATE = "card.html"


def render(card: Card) -> str:
    """Return the page: HTML with its style and its figures inside, and no script."""
    environment = Environment(
        loader=PackageLoader("highrank_plugins.reports.card", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"value": _value, "share": percent, "drawn": _drawn}
    environment.tests["absent"] = lambda thing: isinstance(thing, Absent)
    return environment.get_template(TEMPLATE).render(
        **{field.name: getattr(card, field.name) for field in fields(card)},
        total=sum(part.parameters for part in card.parameters),
        with_figures=plots.is_available(),
    )


def _drawn(figure: Figure) -> Markup:
    # matplotlib has already escaped the texts
    return Markup(plots.svg(figure))


def _value(value: Any) -> str:
    """Return a configured value: yes, 0.1, a list with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
