"""Render a card as one HTML page that needs nothing else."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from highrank_plugins.common.formatting import percent
from highrank_plugins.reports import plots
from highrank_plugins.reports.card.gather import Absent, Card


def render(card: Card) -> str:
    """Return the page: HTML with its style and its figures inside, and no script."""
    environment = Environment(
        loader=PackageLoader("highrank_plugins.reports.card", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    in_pieces = "▁" in str(card.samples)
    words = {"text": _text, "piece": lambda word: _piece(word, in_pieces)}
    environment.filters |= {"value": _value, "share": percent, "drawn": plots.data_uri, **words}
    environment.tests["absent"] = lambda thing: isinstance(thing, Absent)
    return environment.get_template("card.html").render(
        **vars(card),
        in_pieces=in_pieces or "@@" in str(card.samples),
        missing=card.missing,
        shown={name: section for name, section in card.sections.items() if section.rows},
        total=sum(part["parameters"] for part in card.parameters),
        with_figures=plots.is_available(),
    )


def _text(pieces: str) -> str:
    """Return the text that pieces of SentencePiece or subword-nmt split."""
    if "▁" in pieces:
        pieces = pieces.replace("</s>", "▁</s>▁").replace(" ", "").replace("▁", " ")
    return " ".join(pieces.replace("@@ ", "").split())


def _piece(piece: str, begins_with_mark: bool) -> str:
    """Return a piece as people read it, with … where its word goes on."""
    if not begins_with_mark or re.fullmatch("<.+>", piece):
        return re.sub("@@$", "…", piece)
    return piece[1:] or "␣" if piece[0] == "▁" else f"…{piece}"


def _value(value: Any) -> str:
    """Return a configured value: yes, 0.1, a list with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
