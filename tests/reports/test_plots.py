"""Figures: drawn whole, readable on a page of any colours, named for those who cannot see them."""

import math
import re
from itertools import pairwise

import pytest
from matplotlib.image import imread

from highrank_plugins.common.formatting import Bars, Lines
from highrank_plugins.reports.plots import MOST_LABELS, draw, rendered, svg
from tests.reports.card.made import Page

CURVES = Lines({"one": ([1, 2, 3], [1, 10, 100]), "&": ([1, 3], [2, 2])}, "A < B", ("x", "y"))
SHARES = Bars({"mean": {"a": 1.0, "b": 4.0}, "top": {"a": 2.0, "b": 3.0}}, "Shares", ("k", "share"))


def axes_of(figure):
    (plot,) = rendered(figure).axes
    return plot


def test_curves_have_their_values_and_the_requested_scale():
    figure = Lines(CURVES.series, "t", ("x", "y"), "loglog", dashed=("&",))
    plot = axes_of(figure)
    one, other = plot.lines
    assert one.get_ydata().tolist() == [1, 10, 100]
    assert (one.get_linestyle(), other.get_linestyle()) == ("-", "--")
    assert (plot.get_xscale(), plot.get_yscale()) == ("log", "log")
    assert (plot.get_xlabel(), plot.get_ylabel()) == ("x", "y")
    assert [text.get_text() for text in plot.get_legend().texts] == ["one", "&"]


def test_bars_are_as_high_as_their_values_and_side_by_side():
    bars = axes_of(SHARES).patches
    assert [bar.get_height() for bar in bars] == [1.0, 4.0, 2.0, 3.0]
    starts = sorted(bar.get_x() for bar in bars)
    widths = {round(bar.get_width(), 9) for bar in bars}
    assert widths == {0.4} and all(b - a >= 0.4 - 1e-9 for a, b in pairwise(starts))


def test_many_bars_have_few_labels():
    figure = Bars.of({f"{i:,}": 1.0 for i in range(1000, 1060)}, "t", ("x", "y"))
    plot = axes_of(figure)
    assert len(plot.patches) == 60
    assert len(plot.get_xticks()) <= MOST_LABELS


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_are_not_finite_leave_gaps(value):
    svg(Bars.of({"a": 1.0, "b": value}, "t", ("x", "y")))
    svg(Lines({"c": ([1, 2, 3], [1.0, value, 2.0])}, "t", ("x", "y"), "log"))


@pytest.mark.parametrize("figure", [CURVES, SHARES], ids=lambda figure: figure.title)
def test_a_figure_on_a_page_has_the_colours_of_the_page_and_a_label(figure):
    text = svg(figure)
    page = Page(text)
    assert "var(--c0)" in text and "var(--dim)" in text
    assert not re.search("#0102|#000000", text)
    assert figure.axes[0] in page.text
    assert "script" not in page.tags
    assert svg(figure) == text  # the same bytes


def test_text_is_escaped():
    figure = Bars.of({"<script>a</script>": 1.0}, '<b>"quoted"', ("<i>", "y"))
    text = svg(figure)
    assert "<script>" not in text and "<b>" not in text and "<i>" not in text
    assert 'aria-label="&lt;b&gt;' in text


def test_a_file_is_written(tmp_path):
    draw(tmp_path / "new" / "a.png", CURVES)
    assert imread(tmp_path / "new" / "a.png").shape[2] == 4
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.png"]
