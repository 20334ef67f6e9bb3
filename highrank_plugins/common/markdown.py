"""Write Markdown."""

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table: a row per line, under a heading."""
    lines = [headings, ["---"] * len(headings), *rows]
    text = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    return text.replace("| --- |", "|---|").replace(" --- |", "---|")
