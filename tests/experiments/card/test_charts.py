"""Axes and charts: every value inside the frame, round ticks, names for those who cannot see."""

import math
import re

import pytest

from highrank_plugins.experiments.card.axes import linear, logarithmic, short
from highrank_plugins.experiments.card.charts import (
    BOTTOM,
    LEFT,
    MOST_POINTS,
    RIGHT,
    TOP,
    Bars,
    Line,
    bar_chart,
    line_chart,
    thinned,
)
from tests.experiments.card.made import Page


@pytest.mark.parametrize("values", [[0, 1], [-20, 20], [3, 3], [1, 3960], [0.001, 0.0042], [0, 0]])
def test_linear_axes_have_a_few_round_ticks_within(values):
    axis = linear(values, 10, 210)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 7
    assert all(axis.low - 1e-9 <= tick <= axis.high + 1e-9 for tick in ticks)
    assert all(len(short(tick)) <= 6 for tick in ticks)
    assert axis.place(axis.low) == 10 and axis.place(axis.high) == 210


@pytest.mark.parametrize("make", [linear, logarithmic])
def test_what_is_infinite_lies_at_an_end(make):
    axis = make([1.0, 50.0, math.inf, math.nan], 200, 0)
    assert (axis.low, axis.high) == (make([1.0, 50.0], 200, 0).low, make([1.0, 50.0], 200, 0).high)
    assert (axis.place(math.inf), axis.place(math.nan)) == (0, 200)
    assert [short(value) for value in (math.inf, -math.inf, math.nan)] == ["∞", "−∞", "–"]
    assert make([math.inf], 200, 0).ticks()


@pytest.mark.parametrize("values", [[1, 1e-12], [1, 0.5], [1, 0], [9201, 7.5], [0, 0], [1e-5]])
def test_logarithmic_axes_have_powers_of_ten(values):
    axis = logarithmic(values, 200, 0)
    assert all(math.log10(t) == pytest.approx(round(math.log10(t))) for t in axis.ticks())
    assert len(axis.ticks()) <= 6 and axis.high / axis.low <= 1.001e9
    assert all(0 <= axis.place(value) <= 200 for value in values)
    assert axis.place(axis.low * axis.high / axis.low) == 0


def test_numbers_for_the_eye():
    shown = [0, 0.25, 12.345, 1234.5, 3e-7, 2.51e-5, 1e6]
    assert list(map(short, shown)) == ["0", "0.25", "12.3", "1,234", "3e-7", "2.5e-5", "1e6"]


def test_lines_stay_in_the_frame_and_name_themselves():
    chart = line_chart(
        "A < B", "x", "y", [Line("one", [1, 2, 3], [1, 0, -5]), Line("&", [1, 3], [2, 2])]
    )
    Page(chart)
    points = [
        tuple(map(float, p.split(",")))
        for line in re.findall('points="(.*?)"', chart)
        for p in line.split()
    ]
    assert len(points) == 5
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in points)
    assert 'role="img" aria-label="A &lt; B; y over x: one, &amp;"' in chart


@pytest.mark.parametrize("log", [False, True])
def test_bars_are_as_high_as_their_values(log):
    heights = [10.0, 100.0, 1000.0]
    chart = bar_chart("t", "x", "y", ["a", "b", "c"], [Bars("s", heights)], log=log)
    Page(chart)
    drawn = [float(h) for h in re.findall('<rect[^>]* height="(.*?)"', chart)]
    whole = BOTTOM - TOP
    want = [whole / 3, whole * 2 / 3, whole] if log else [whole / 100, whole / 10, whole]
    assert drawn == pytest.approx(want, abs=0.11)


def test_many_bars_have_few_labels_and_long_lines_fewer_points():
    labels = [f"{i:,}" for i in range(1000, 1060)]
    chart = bar_chart("t", "x", "y", labels, [Bars("s", [1.0] * 60)])
    assert len(re.findall("<rect", chart)) == 60
    assert len(re.findall('text-anchor="middle"', chart)) < 12
    places, values = thinned([float(i) for i in range(10_000)])
    assert len(places) == MOST_POINTS and (places[0], places[-1]) == (1, 10_000)
    assert values == [place - 1 for place in places]
