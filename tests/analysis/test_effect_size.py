"""Test analysis/effect_size.py against printed tables and scipy."""

import pytest
from scipy.stats import nct, t, ttest_ind

from highrank_plugins.analysis import Summary, confidence_interval, hedges_g, runs_needed
from highrank_plugins.analysis.effect_size import _power

A, B = [3.0, 4.0, 5.5, 4.5], [6.0, 7.0, 9.0]


@pytest.mark.parametrize("equal", [True, False])
def test_confidence_intervals_equal_scipys(equal):
    want = ttest_ind(A, B, equal_var=equal).confidence_interval(0.95)
    assert confidence_interval(A, B, equal) == pytest.approx((want.low, want.high))


def test_hedges_g_is_the_difference_in_corrected_deviations():
    assert hedges_g(Summary(10, 2, 5), Summary(8, 2, 5)) == pytest.approx(1 - 3 / 31)
    with pytest.raises(ValueError, match="deviation of 0"):
        hedges_g([1.0, 1.0], [2.0, 2.0])


@pytest.mark.parametrize(("effect", "n"), [(1.0, 17), (0.5, 64), (0.8, 26)])
def test_runs_needed_for_a_power_of_80_percent_match_cohens_table(effect, n):
    """Compare with Cohen 1988, two-sided, alpha 0.05."""
    assert runs_needed(Summary(effect, 1, 9), Summary(0, 1, 9)) == n


@pytest.mark.parametrize(("effect", "n"), [(1, 17), (2, 5), (0.2, 100)])
def test_power_follows_from_the_noncentral_t_distribution(effect, n):
    freedom, shift = 2 * n - 2, effect * (n / 2) ** 0.5
    bound = t.ppf(0.975, freedom)
    want = nct.sf(bound, freedom, shift) + nct.cdf(-bound, freedom, shift)
    assert _power(effect, n, 0.05) == pytest.approx(want, abs=1e-4)


def test_large_effects_need_two_runs_and_zero_effects_have_no_number():
    assert runs_needed(Summary(90, 0.1, 3), Summary(80, 0.1, 3)) == 2
    assert runs_needed(Summary(1, 1, 3), Summary(1, 1, 3)) is None
    assert runs_needed(Summary(1, 0, 3), Summary(2, 0, 3)) == 2
