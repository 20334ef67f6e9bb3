"""non_monotone_trigger: a table by hand, and the condition as the paper's code tests it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank_plugins.optim.averaged_sgd import non_monotone_trigger


@pytest.mark.parametrize(
    ("losses", "n", "epoch"),
    [
        ([], 5, None),
        ([5, 4, 3, 2, 1], 2, None),
        ([1, 2], 0, 2),  # worse than the only one before
        ([1, 1], 0, None),  # equal is not worse
        ([3, 9, 9, 9], 2, 4),  # epoch 4 is the first that may: n + 2
        ([9, 3, 9, 9], 2, None),  # 9 is not above loss_1 = 9
        ([9, 3, 8, 8, 8], 2, 5),  # 8 > min(9, 3)
        ([9, 3, 8, 8, 8, 1, 1, 9], 2, 5),  # the first time counts
        ([4, 1, 5, 3], 2, None),  # epochs 2 and 3 are the last two, and do not count
        ([7, 6, 5, 4, 3, 2, 8], 5, 7),
        ([7, 6, 5, 4, 3, 2, 7], 5, None),
        ([7, 6, 5, 4, 3, 8], 5, None),  # before epoch n + 2
    ],
)
def test_the_trigger_fires_at_the_expected_epoch(losses, n, epoch):
    assert non_monotone_trigger(losses, n) == epoch


@given(st.lists(st.integers(0, 6), max_size=20), st.integers(0, 5))
def test_every_epoch_is_judged_by_what_came_before_it(losses, n):
    fires = [
        e
        for e in range(1, len(losses) + 1)
        if e - 1 > n and losses[e - 1] > min(losses[: e - 1 - n])
    ]
    assert non_monotone_trigger(losses, n) == (fires[0] if fires else None)


def test_five_epochs_are_the_default():
    losses = [1, *[2] * 9]
    assert non_monotone_trigger(losses) == non_monotone_trigger(losses, 5) == 7


def test_invalid_values_are_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        non_monotone_trigger([1.0], -1)
    with pytest.raises(ValueError, match="epoch 2 is NaN"):
        non_monotone_trigger([1.0, math.nan], 5)
