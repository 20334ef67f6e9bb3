"""Holm's adjustment and Pearson's correlation, by hand and against scipy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank_plugins.analysis import holm, pearson


def test_holm_equals_values_computed_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_what_stepping_down_rejects(p_values, level):
    rejected = set()
    for before, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] * (len(p_values) - before) > level:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(holm(p_values)) if p <= level} == rejected


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan])
def test_holm_refuses_values_that_are_not_probabilities(bad):
    with pytest.raises(ValueError, match=r"p-values must lie in \[0, 1\]"):
        holm([0.5, bad])


def test_pearson_equals_values_computed_by_hand():
    found = pearson([1, 2, 3, 4], [2, 1, 4, 3])
    assert found.r == pytest.approx(0.6)
    assert found.n == 4
    t = 0.6 * math.sqrt(2 / (1 - 0.36))  # two degrees of freedom: P(|T| > t) has a closed form
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2], [1, 2], "three pairs or more, got 2 and 2"),
        ([1, 2, 3], [1, 2], "got 3 and 2"),
        ([1, 1, 1], [1, 2, 3], "a measure is constant"),
        ([1, 2, 3], [2, 2, 2], "a measure is constant"),
        ([1, 2, math.nan], [1, 2, 3], "NaN or infinite"),
    ],
)
def test_pearson_refuses_bad_input(x, y, message):
    with pytest.raises(ValueError, match=message):
        pearson(x, y)
