"""Test common/formatting.py."""

import math

import pytest

from highrank_plugins.common.formatting import cell, percent, short, table


def test_numbers_are_shortened_for_people():
    shown = [0, 0.25, 12.345, 1234.5, 3e-7, 2.51e-5, 1e6]
    assert list(map(short, shown)) == ["0", "0.25", "12.3", "1,234", "3e-7", "2.5e-5", "1e6"]
    assert [short(value) for value in (math.inf, -math.inf, math.nan)] == ["∞", "−∞", "–"]
    assert percent(0.1234) == "12.3\u00a0%"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a | b", r"a \| b"),
        (r"escaped \| already", r"escaped \| already"),
        ("two\r\n lines", "two lines"),
        ("<script>x</script>", "&lt;script>x&lt;/script>"),
        ("`<token>` of <b>", "`<token>` of &lt;b>"),
        (0.5, "0.5"),
    ],
)
def test_a_cell_cannot_break_its_table(text, shown):
    assert cell(text) == shown
    assert table(["head"], [[str(text)]]).splitlines()[2:] == [f"| {shown} |"]
