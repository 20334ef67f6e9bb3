"""reports/drawn_markdown.py: a page as a terminal shows it."""

import re

from highrank_plugins.common.formatting import table
from highrank_plugins.reports.drawn_markdown import drawn_markdown


def plain(page: str, width: int = 80) -> list[str]:
    lines = re.sub("\x1b.*?m", "", drawn_markdown(page, width)).splitlines()
    return [line.rstrip() for line in lines]


def test_a_table_loses_its_markup_and_keeps_its_cells(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    page = table(["`run`", "ppl"], [["a|b", "8.5"], ["`<c>`", "**107.25**"]])
    assert plain(page) == [" run      ppl", "─" * 14, " a|b      8.5", " <c>   107.25"]
    assert "\x1b[1m107.25\x1b[0m" in drawn_markdown(page, 80)


def test_headings_and_paragraphs_fit_the_terminal():
    page = "\n## On `lstm`\n\nA paragraph of `code` in\ntwo lines.\n\n" + table(["a"], [["1"]])
    assert plain(page, 20) == [
        "", "On lstm", "", "A paragraph of code", "in two lines.", "", " a", "───", " 1"
    ]  # fmt: skip
    assert drawn_markdown("line\n", 80) == "line\n" and drawn_markdown("", 80) == ""


def test_headings_are_bold_if_the_terminal_supports_it(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert drawn_markdown("# Title\n", 80) == "\x1b[1mTitle\x1b[0m\n"
    monkeypatch.setenv("TERM", "dumb")
    assert drawn_markdown("# Title\n", 80) == "Title\n"


def test_a_wide_table_repeats_the_columns_that_name_a_row():
    headings = ["case", "implementation", *(f"number {index}" for index in range(6))]
    lines = plain(table(headings, [["mos", name, *"123456"] for name in ("naive", "cpp")]), 60)
    assert max(map(len, lines)) <= 60
    assert [line.split()[:2] for line in lines].count(["mos", "cpp"]) == 2


def test_long_text_takes_several_lines_and_long_names_are_not_cut():
    lines = plain(table(["system", "ppl", "source"], [["m" * 30, "5", "long text " * 6]]), 60)
    assert max(map(len, lines)) <= 60 and any("m" * 30 in line for line in lines)
    assert " ".join(lines).count("long") == 6
