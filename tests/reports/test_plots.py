"""Figures: drawn whole, readable on any page, named for those who cannot see them."""

import math
from base64 import b64decode
from itertools import pairwise

import pytest
from matplotlib.image import imread

from highrank_plugins.common.formatting import Bars, Lines
from highrank_plugins.reports.plots import MOST_LABELS, data_uri, draw, rendered

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


def test_axes_end_where_they_are_told_to_and_levels_are_named():
    figure = Bars(SHARES.groups, "t", ("k", "share"), "log", ends=(1, None), levels={"1/K": 2.0})
    plot = axes_of(figure)
    assert plot.get_ylim()[0] == 1 and plot.lines[-1].get_ydata()[0] == 2
    assert [text.get_text() for text in plot.get_legend().texts] == ["1/K", "mean", "top"]
    assert axes_of(Lines(CURVES.series, "t", ("x", "y"), ends=(0, 200))).get_ylim() == (0, 200)


def test_many_bars_have_few_labels():
    figure = Bars({"": {f"{i:,}": 1.0 for i in range(1000, 1060)}}, "t", ("x", "y"))
    plot = axes_of(figure)
    assert len(plot.patches) == 60
    assert len(plot.get_xticks()) <= MOST_LABELS


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_are_not_finite_leave_gaps(value):
    rendered(Bars({"": {"a": 1.0, "b": value}}, "t", ("x", "y"))).canvas.draw()
    rendered(Lines({"c": ([1, 2, 3], [1.0, value, 2])}, "t", ("x", "y"), "log")).canvas.draw()


def test_a_figure_on_a_page_is_an_image_of_the_same_bytes():
    kind, _, content = data_uri(CURVES).partition(",")
    assert kind == "data:image/svg+xml;base64" and b"A &lt; B" in b64decode(content)
    assert data_uri(CURVES) == f"{kind},{content}"


def test_a_file_is_written(tmp_path):
    draw(tmp_path / "new" / "a.png", CURVES)
    assert imread(tmp_path / "new" / "a.png").shape[2] == 4
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.png"]
