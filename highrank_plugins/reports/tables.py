"""Write tables for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import itertools
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from highrank_plugins.common import formatting

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "ε": r"$\varepsilon$", "α": r"$\alpha$", "≥": r"$\geq$",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}",
}  # fmt: skip
_PADDING = 3  # characters that rich puts around a column


@dataclass(frozen=True)
class Cell:
    """Hold a text, and whether it is bold. `values` are the numbers in it, as CSV has them."""

    text: str
    bold: bool = False
    values: Sequence[float | str] = ()


NOTHING = Cell("–", values=[""])


def number(value: float | None, form: str) -> Cell:
    """Return a cell of a number, in a format; a dash if there is none."""
    return NOTHING if value is None else Cell(format(value, form), values=[value])


@dataclass(frozen=True)
class Table:
    """Hold rows under headings, and sentences below.

    `values` has for each column the names of its columns in CSV, by default its heading.
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
    lines: list[str] = []
    for table in tables:
        head, *rows = map(_latex_row, [list(map(Cell, table.headings)), *table.rows])
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}", r"\toprule", head]
        lines += [r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""]
        for note in table.notes:
            lines += [_escaped(note), ""]
    return "\n".join(lines)


def _latex_row(cells: Sequence[Cell]) -> str:
    texts = ((_escaped(cell.text), cell.bold) for cell in cells)
    return " & ".join(rf"\textbf{{{text}}}" if bold else text for text, bold in texts) + r" \\"


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

    Columns of numbers are aligned to the right. A table that is wider than the terminal continues
    below, and repeats the columns that name its rows.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    text = io.StringIO()
    height = None if width is None else 25  # without it rich ignores the width for TERM=dumb
    console = Console(
        file=text, force_terminal=True, width=width, height=height, highlight=False
    )  # fmt: skip
    for number, table in enumerate(tables):
        title = table.title or None
        columns = [_Column(table, index, console.width) for index in range(len(table.headings))]
        for part, group in enumerate(_fitting(columns, console.width)):
            if number or part:
                console.print()
            drawn = RichTable(
                title=title, box=box.SIMPLE_HEAD, title_justify="left", show_edge=False
            )
            for column in group:
                heading = Text("\n".join(column.heading))
                drawn.add_column(
                    heading, justify="right" if column.numeric else "left",
                    no_wrap=column.numeric, width=column.width, overflow="fold",
                )  # fmt: skip
            for row in table.rows:
                cells = (row[column.index] for column in group)
                drawn.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in cells))
            console.print(drawn)
            title = None
        for note in table.notes:
            console.print()
            console.print(Text(note, "dim"))
    return re.sub(" +$", "", text.getvalue(), flags=re.MULTILINE)


class _Column:
    """Choose the width, the alignment and the lines of the heading of a column."""

    def __init__(self, table: Table, index: int, terminal: int):
        cells = [row[index].text for row in table.rows]
        self.index = index
        # letters before any digit make a text
        self.numeric = index > 0 and not any(re.match(r"[^\d]*[^\W\d_]", cell) for cell in cells)
        widest = max(map(len, cells), default=0)
        if not self.numeric:  # long text takes several lines
            words = (len(word) for cell in cells for word in cell.split())
            widest = min(widest, max(terminal // 3, *words, 0))
        heading = textwrap.wrap(table.headings[index], max(widest, 10), break_long_words=False)
        self.heading = heading or [""]
        self.width = min(max(widest, *map(len, self.heading)), terminal - 2)


def _fitting(columns: Sequence[_Column], terminal: int) -> list[list[_Column]]:
    """Return the columns in groups as wide as a terminal, each beginning with what names a row."""
    text = list(itertools.takewhile(lambda column: not column.numeric, columns[:2]))
    names = columns[:1] if _width(text) > terminal / 2 else text
    groups = [[*names]]
    for column in columns[len(names) :]:
        if len(groups[-1]) > len(names) and _width([*groups[-1], column]) > terminal:
            groups.append([*names])
        groups[-1].append(column)
    return groups


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width + _PADDING for column in columns) - 1


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "terminal": to_terminal,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
