"""Write tables for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from highrank_plugins.common import formatting

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "ε": r"$\varepsilon$", "α": r"$\alpha$", "≥": r"$\geq$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Hold a text, and whether it is bold. `values` are the numbers in it, as CSV has them."""

    text: str
    bold: bool = False
    values: Sequence[float | str] = ()


@dataclass(frozen=True)
class Table:
    """Hold rows under headings, and sentences below.

    Attributes:
        values: for each column the names of its columns in CSV; none: the heading is the only one.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    values: Sequence[Sequence[str]] = field(default=())


def to_markdown(tables: Sequence[Table]) -> str:
    """Return the tables one after the other, each with its notes as a paragraph."""
    parts = []
    for table in tables:
        rows = [[f"**{cell.text}**" if cell.bold else cell.text for cell in r] for r in table.rows]
        parts.append(formatting.table(table.headings, rows))
        if table.notes:
            parts.append("\n".join(table.notes) + "\n")
    return "\n".join(parts)


def to_latex(tables: Sequence[Table]) -> str:
    """Return tables of the package booktabs, notes as paragraphs."""
    lines = []
    for table in tables:
        lines.append(rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}")
        lines += [r"\toprule", _latex_row(map(_escaped, table.headings)), r"\midrule"]
        for row in table.rows:
            cells = (
                rf"\textbf{{{_escaped(cell.text)}}}" if cell.bold else _escaped(cell.text)
                for cell in row
            )
            lines.append(_latex_row(cells))
        lines += [r"\bottomrule", r"\end{tabular}", ""]
        for note in table.notes:
            lines += [_escaped(note), ""]
    return "\n".join(lines)


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def to_csv(tables: Sequence[Table]) -> str:
    """Return one table with the columns of all, whose rows must be of the same systems.

    Numbers have all their digits; notes follow as comments.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings: list[str] = []
    rows: list[list[object]] = [[] for _ in tables[0].rows]
    for number, table in enumerate(tables):
        first = 0 if number == 0 else 1  # the first column names the system
        names = table.values or [[heading] for heading in table.headings]
        headings += [name for column in names[first:] for name in column]
        for row, cells in zip(rows, table.rows, strict=True):
            for column, cell in zip(names[first:], cells[first:], strict=True):
                values = list(cell.values) or [cell.text if len(column) == 1 else ""]
                row += values + [""] * (len(column) - len(values))
    writer.writerows([headings, *rows])
    for table in tables:
        text.writelines(f"# {note}\n" for note in table.notes)
    return text.getvalue()


def to_terminal(tables: Sequence[Table], width: int | None = None) -> str:
    """Return the tables drawn by rich, with its codes for bold and colours.

    Args:
        width: of the terminal; None: what rich finds.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=width, highlight=False)
    for table in tables:
        title = table.title
        for columns in _fitting(table, console.width):
            drawn = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left")
            for number in columns:
                heading = Text("\n".join(_wrapped(table, number)))
                drawn.add_column(heading, justify="right" if number else "left", no_wrap=True)
            for row in table.rows:
                cells = (row[number] for number in columns)
                drawn.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in cells))
            console.print(drawn)
            title = ""
        for note in table.notes:
            console.print(Text(note, "dim"))
    return text.getvalue()


def _fitting(table: Table, width: int) -> list[list[int]]:
    """Return the columns in groups as wide as a terminal, each beginning with the first column."""
    columns = range(len(table.headings))
    widths = [max(_cell_width(table, i), *map(len, _wrapped(table, i))) + 3 for i in columns]
    groups = [[0]]
    for number in range(1, len(widths)):
        if len(groups[-1]) > 1 and sum(widths[i] for i in [*groups[-1], number]) > width:
            groups.append([0])
        groups[-1].append(number)
    return groups


def _cell_width(table: Table, column: int) -> int:
    return max((len(row[column].text) for row in table.rows), default=0)


def _wrapped(table: Table, column: int) -> list[str]:
    """Return the lines of a heading, which is at most as wide as its cells or ten characters."""
    width = max(_cell_width(table, column), 10)
    return textwrap.wrap(table.headings[column], width, break_long_words=False) or [""]


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "terminal": to_terminal,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
