"""Write tables for a terminal, Markdown, LaTeX and CSV."""

import csv
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from highrank_plugins.common import formatting

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "−": "$-$", "–": "--", "ε": r"$\varepsilon$", "α": r"$\alpha$", "≥": r"$\geq$",
    "Σ": r"$\Sigma$", "×": r"$\times$",
    "<": "$<$", ">": "$>$", "|": r"\textbar{}",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Hold a text, and whether it is bold. `values` has its numbers by column, as CSV has them."""

    text: str
    bold: bool = False
    values: Mapping[str, float | str] = field(default_factory=dict)


NOTHING = Cell("–")
_LINE = Cell("———")


def number(value: float | None, form: str, column: str) -> Cell:
    """Return a cell of a number, in a format, with its column in CSV; a dash if there is none."""
    return NOTHING if value is None else Cell(format(value, form), values={column: value})


@dataclass(frozen=True)
class Table:
    """Hold rows under headings, and sentences below; `lines` are the rows with a line above.

    `details` are headings of columns that `brief` leaves out.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()
    lines: Sequence[int] = ()
    details: Sequence[str] = ()

    def lined(self) -> list[Sequence[Cell]]:
        """Return the rows with rows of dashes for the lines."""
        rows = list(self.rows)
        for index in sorted(self.lines, reverse=True):
            rows.insert(index, [_LINE] * len(self.headings))
        return rows


def brief(tables: Sequence[Table]) -> list[Table]:
    """Return the tables without the columns that are details."""
    found = []
    for table in tables:
        kept = [i for i, heading in enumerate(table.headings) if heading not in table.details]
        headings = [table.headings[i] for i in kept]
        rows = [[row[i] for i in kept] for row in table.rows]
        found.append(replace(table, headings=headings, rows=rows))
    return found


def to_markdown(tables: Sequence[Table]) -> str:
    """Return the tables one after the other, each with its notes as a paragraph."""
    parts = []
    for table in tables:
        rows = [[f"**{of.text}**" if of.bold else of.text for of in r] for r in table.lined()]
        parts.append(formatting.table(table.headings, rows))
        if table.notes:
            parts.append("\n".join(table.notes) + "\n")
    return "\n".join(parts)


def to_latex(tables: Sequence[Table]) -> str:
    """Return tables of the package booktabs, notes as paragraphs."""
    lines: list[str] = []
    for table in tables:
        cells = [
            [rf"\textbf{{{_escaped(of.text)}}}" if of.bold else _escaped(of.text) for of in row]
            for row in ([Cell(heading) for heading in table.headings], *table.rows)
        ]
        head, *rows = (" & ".join(row) + r" \\" for row in cells)
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}", r"\toprule", head]
        for index in sorted(table.lines, reverse=True):
            rows.insert(index, r"\midrule")
        lines += [r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""]
        for note in table.notes:
            lines += [_escaped(note), ""]
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def to_csv(tables: Sequence[Table]) -> str:
    """Return one table with the columns of all, whose rows must be of the same systems."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings: list[str] = []
    rows: list[list[object]] = [[] for _ in tables[0].rows]
    for number, table in enumerate(tables):
        for index in range(min(number, 1), len(table.headings)):  # the first one names the system
            cells = [cells[index] for cells in table.rows]
            names = dict.fromkeys(name for cell in cells for name in cell.values)
            headings += names or [table.headings[index]]
            for row, cell in zip(rows, cells, strict=True):
                row += [cell.values.get(name, "") for name in names] or [cell.text]
    writer.writerows([headings, *rows])
    lines = [line for table in tables for note in table.notes for line in note.splitlines()]
    text.writelines(f"# {line}\n" for line in lines if line)
    return text.getvalue()


def to_terminal(tables: Sequence[Table]) -> str:
    """Return the tables drawn by rich; of one wider than the terminal, each row becomes a list."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.text import Text

    text = io.StringIO()
    console = Console(file=text, force_terminal=True, highlight=False)
    endless = console.options.update(max_width=10_000)
    for number, table in enumerate(tables):
        if number:
            console.print()
        if table.title:
            console.print(Text(table.title, "italic"))
        drawn = _drawn(table.headings, table.lined())
        if Measurement.get(console, endless, drawn).minimum <= console.width:
            console.print(drawn)
        else:
            for name, *cells in table.lined():
                if name is _LINE:
                    console.print(_LINE.text * 9, "", sep="\n")
                    continue
                values = zip(map(Cell, table.headings[1:]), cells, strict=True)
                console.print(_drawn([table.headings[0], name.text], list(values)), "")
        for note in table.notes:
            console.print()
            console.print(Text(note, "dim"))
    return re.sub(" +$", "", text.getvalue(), flags=re.MULTILINE)


def _drawn(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Any:
    """Return a table of rich, whose long text takes several lines and whose numbers do not."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False)
    for index, heading in enumerate(headings):
        cells = [row[index].text for row in rows]
        # letters before any digit make a text
        numeric = index > 0 and not any(re.match(r"[^\d]*[^\W\d_]", cell) for cell in cells)
        words = textwrap.wrap(heading, max(10, *map(len, cells)), break_long_words=False)
        drawn.add_column(
            Text("\n".join(words)), justify="right" if numeric else "left", overflow="fold",
            no_wrap=numeric, min_width=max(map(len, [*cells, *words])) if numeric else None,
        )  # fmt: skip
    for row in rows:
        drawn.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
    return drawn


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "terminal": to_terminal,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
