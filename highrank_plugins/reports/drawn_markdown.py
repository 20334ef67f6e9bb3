"""Draw a page of Markdown in a terminal."""

import re
import textwrap

from highrank_plugins.reports.tables import Cell, Table, bold, to_terminal

_RULE = re.compile(r"\|[\s:|-]+\|")  # the line below the headings of a table


def drawn_markdown(page: str, width: int) -> str:
    """Return a page of ours for a terminal: tables drawn, paragraphs wrapped, no Markdown marks.

    Args:
        page: headings, paragraphs, and tables of `formatting.table`, with empty lines in between.
        width: number of the terminal's columns.
    """
    parts = re.split(r"(\n{2,})", page)
    return "".join(part if part.isspace() else _drawn(part, width) for part in parts)


def _drawn(block: str, width: int) -> str:
    lines = block.strip("\n").splitlines()
    if len(lines) > 1 and _RULE.fullmatch(lines[1]):
        headings = [cell.text for cell in _cells(lines[0])]
        drawn = to_terminal([Table("", headings, list(map(_cells, lines[2:])))], width).rstrip("\n")
    elif lines and lines[0].startswith("#"):
        drawn = bold(lines[0].lstrip("# ").replace("`", ""))
    else:
        text = " ".join(lines).replace("`", "")
        drawn = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    before = block[: len(block) - len(block.lstrip("\n"))]
    return before + drawn + block[len(block.rstrip("\n")) :]


def _cells(line: str) -> list[Cell]:
    """Return the cells of a row, as `formatting.cell` was given them."""
    texts = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [_cell(re.sub(r"\\\|", "|", text.strip())) for text in texts]


def _cell(text: str) -> Cell:
    bold = re.fullmatch(r"\*\*(.*)\*\*", text)
    shown = bold[1] if bold else text
    return Cell(shown.replace("`", "").replace("&lt;", "<"), bold is not None)
