"""The published means and deviations give the published p-values."""

import math

import pytest

from highrank_plugins.analysis import Summary, student_t, summarise, welch_t

# Parthiban et al. 2021: test perplexities of 10 random seeds, p of each against the softmax
PTB = {
    "softmax": (57.08, 0.10, None),
    "sigsoftmax": (57.03, 0.15, "3.92e-01"),
    "gss": (57.02, 0.13, "2.62e-01"),
    "plif": (56.81, 0.11, "1.91e-05"),
    "mos": (54.88, 0.26, "2.02e-15"),
}
WT2 = {
    "softmax": (64.63, 0.09, None),
    "sigsoftmax": (64.35, 0.18, "3.46e-04"),
    "gss": (64.51, 0.13, "2.74e-02"),
    "plif": (64.15, 0.17, "2.98e-07"),
    "mos": (61.97, 0.43, "2.04e-13"),
}
FROZEN = [((56.82, 0.09), PTB["plif"], "0.826"), ((64.30, 0.17), WT2["plif"], "0.0641")]


def ten(numbers):
    return Summary(*numbers[:2], 10)


@pytest.mark.parametrize("corpus", [PTB, WT2], ids=["ptb", "wt2"])
@pytest.mark.parametrize("system", ["sigsoftmax", "gss", "plif", "mos"])
def test_published_p_values(corpus, system):
    result = student_t(ten(corpus["softmax"]), ten(corpus[system]))
    assert f"{result.p_value:.2e}" == corpus[system][2]
    assert result.statistic > 0  # the softmax has the higher perplexity


@pytest.mark.parametrize(("frozen", "learned", "printed"), FROZEN)
def test_published_p_values_of_frozen_slopes(frozen, learned, printed):
    assert f"{student_t(ten(frozen), ten(learned)).p_value:.3g}" == str(float(printed))


def test_the_matched_pair_of_the_paper_is_not_what_it_prints():
    p_value = student_t(Summary(56.39, 0.19, 10), Summary(56.45, 0.10, 10)).p_value
    assert p_value == pytest.approx(0.39, abs=0.005)  # 0.62 in print


A, B = [3.0, 5.0, 4.0], [7.0, 9.0, 6.0, 10.0]


def test_student_by_hand():
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
        (Summary(1.0, 0.1, 1), "no summary of two or more runs"),
        (Summary(1.0, -0.1, 3), "no summary"),
        ([1.0, float("nan")], "a run has no number"),
        ([2.0, 2.0], "both systems have a deviation of 0"),
    ],
)
@pytest.mark.parametrize("test", [student_t, welch_t])
def test_bad_runs(test, a, message):
    with pytest.raises(ValueError, match=message):
        test(a, [1.0, 1.0])
