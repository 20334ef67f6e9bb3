"""Both t-tests, by hand and against scipy; tests/results/ has those that papers print."""

import math

import pytest

from highrank_plugins.analysis import Summary, student_t, summarise, welch_t

A, B = [3.0, 5.0, 4.0], [7.0, 9.0, 6.0, 10.0]


def test_student_t_equals_the_value_computed_by_hand():
    # variances 1 and 10/3, pooled (2 · 1 + 3 · 10/3) / 5 = 12/5
    expected = (4 - 8) / math.sqrt(12 / 5 * (1 / 3 + 1 / 4))
    assert student_t(A, B).statistic == pytest.approx(expected, rel=1e-12)
    assert student_t(B, A).statistic == pytest.approx(-expected, rel=1e-12)
    assert student_t(A, B).p_value == pytest.approx(student_t(B, A).p_value)


@pytest.mark.parametrize(("test", "equal"), [(student_t, True), (welch_t, False)])
def test_runs_and_their_summaries_agree_with_scipy(test, equal):
    from scipy.stats import ttest_ind

    expected = ttest_ind(A, B, equal_var=equal)
    for a, b in ((A, B), (summarise(A), summarise(B)), (tuple(A), summarise(B))):
        assert test(a, b) == pytest.approx(tuple(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("a", "message"),
    [
        ([1.0], "at least two runs of each system, got 1"),
        (Summary(1.0, 0.1, 1), "expected a summary of at least two runs"),
        (Summary(1.0, -0.1, 3), "expected a summary"),
        ([1.0, float("nan")], "a run is NaN"),
        ([2.0, 2.0], "both systems have a standard deviation of 0"),
    ],
)
@pytest.mark.parametrize("test", [student_t, welch_t])
def test_bad_runs_are_refused(test, a, message):
    with pytest.raises(ValueError, match=message):
        test(a, [1.0, 1.0])
