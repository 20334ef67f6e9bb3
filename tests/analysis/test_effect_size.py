"""Test analysis/effect_size.py against printed tables and scipy."""

import pytest
from scipy.stats import ttest_ind

from highrank_plugins.analysis import Summary, confidence_interval, hedges_g

A, B = [3.0, 4.0, 5.5, 4.5], [6.0, 7.0, 9.0]


@pytest.mark.parametrize("equal", [True, False])
def test_confidence_intervals_equal_scipys(equal):
    want = ttest_ind(A, B, equal_var=equal).confidence_interval(0.95)
    assert confidence_interval(A, B, equal) == pytest.approx((want.low, want.high))


def test_hedges_g_is_the_difference_in_corrected_deviations():
    assert hedges_g(Summary(10, 2, 5), Summary(8, 2, 5)) == pytest.approx(1 - 3 / 31)
    with pytest.raises(ValueError, match="deviation of 0"):
        hedges_g([1.0, 1.0], [2.0, 2.0])
