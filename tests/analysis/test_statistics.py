"""Tests and correlations, by hand and against scipy and sacreBLEU; tests/results/ has papers'."""

import math
import random

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from highrank_plugins.analysis import statistics as stats

A, B = [3.0, 5.0, 4.0], [7.0, 9.0, 6.0, 10.0]


@pytest.mark.parametrize(("test", "equal"), [(stats.student_t, True), (stats.welch_t, False)])
def test_runs_their_summaries_and_intervals_agree_with_scipy(test, equal):
    expected = scipy.stats.ttest_ind(A, B, equal_var=equal)
    runs = ((A, B), (stats.summarise(A), stats.summarise(B)), (tuple(A), stats.summarise(B)))
    for a, b in runs:
        assert test(a, b) == pytest.approx(tuple(expected), rel=1e-12)
    interval = expected.confidence_interval(0.95)
    assert stats.confidence_interval(A, B, equal) == pytest.approx((interval.low, interval.high))
    effect = stats.hedges_g(stats.Summary(10, 2, 5), stats.Summary(8, 2, 5))
    assert effect == pytest.approx(1 - 3 / 31)


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0.001, 0.5))
@example([0.04, 0.01, 0.03], 0.05)
def test_holm_rejects_what_stepping_down_rejects(p_values, level):
    rejected, order = set(), sorted(range(len(p_values)), key=lambda i: p_values[i])
    for before, index in enumerate(order):
        if p_values[index] * (len(p_values) - before) > level:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(stats.holm(p_values)) if p <= level} == rejected
    assert stats.holm([0.04, 0.01, 0.03, 0.9]) == pytest.approx([0.09, 0.04, 0.09, 0.9])


@pytest.mark.parametrize("name", ["student", "welch"])
def test_a_sequential_test_errs_in_a_twentieth_of_studies_over_all_looks(name):
    once, test = stats.PlannedTest(name), stats.PlannedTest(name, (3, 10))
    a, b = np.random.default_rng(9).normal(size=(2, 10_000, 10))
    looks = [
        scipy.stats.ttest_ind(a[:, :n], b[:, :n], axis=1, equal_var=name == "student").pvalue
        for n in range(3, 11)
    ]
    least = np.min(looks, 0)
    assert np.mean(least < 0.05) > 0.14  # what a test of a fixed plan would do
    for alpha in (0.05, 0.01):
        assert np.mean(least < test.level(alpha)) == pytest.approx(alpha, rel=0.2)
    own = stats.Summary(0.0, 1.0, 5)
    for other in (stats.Summary(1.6, 0.8, 5), stats.Summary(9.0, 1.0, 5)):
        plain, found = once(own, other).p_value, test(own, other).p_value
        share = np.mean(least <= plain)
        assert plain < 0.05 and plain < found <= 8 * plain
        assert (found == pytest.approx(share, rel=0.2) and found > 0.05) or share < 0.001
    assert stats.PlannedTest(name, (3, 3))(own, other) == once(own, other)


def test_places_count_the_systems_that_are_told_apart():
    chain = [(5.0, 0.5, 4), (2.0, 0.5, 4), (3.5, 2.0, 4), (9.0, 0.5, 4)]
    runs = [stats.Summary(*one) for one in chain]  # 3.5 is told from 9 alone
    ranges = [(2, 3), (3, 4), (2, 4), (1, 1)]
    assert stats.ranking(runs, 1, 0.05, stats.student_t) == ([3, 0, 2, 1], ranges, [1])
    ranges = [(2, 3), (1, 2), (1, 3), (4, 4)]  # 5 is told from 2, but not both from 3.5
    assert stats.ranking(runs, -1, 0.05, stats.student_t) == ([1, 2, 0, 3], ranges, [3])
    # pairs are adjusted together, and constant scores are not told apart
    a, b, c = stats.Summary(1, 0.1, 3), stats.Summary(1.3, 0.1, 3), stats.Summary(1.15, 0.1, 3)
    assert stats.student_t(a, b).p_value == pytest.approx(0.0213, abs=1e-3)
    assert stats.ranking([a, b], 1, 0.05, stats.student_t).lines == [1]
    assert stats.ranking([a, b, c], 1, 0.05, stats.student_t) == ([1, 2, 0], [(1, 3)] * 3, [])
    assert stats.ranking([[2.0, 2.0], [3.0, 3.0]], 1, 0.05, stats.student_t).ranges == [(1, 2)] * 2


def test_power_is_the_share_of_studies_that_find_the_effect():
    generator = np.random.default_rng(0)
    for effect, seeds, alpha in ((3.07, 3, 0.05), (1.0, 17, 0.05), (2.5, 5, 0.01)):
        a, b = generator.normal(size=(2, 40_000, seeds))
        found = (scipy.stats.ttest_ind(a + effect, b, axis=1).pvalue < alpha).mean()
        assert stats.power(effect, seeds, alpha) == pytest.approx(found, abs=0.008)
    assert stats.power(0.0, 3) == pytest.approx(0.05) and stats.power(500.0, 3) == 1
    assert [round(stats.smallest_effect(n), 2) for n in (2, 3, 5, 30)] == [5.65, 3.07, 2.02, 0.74]
    for effect in (0.05, 0.4, 1.6, 3.2, 6.0):
        n = stats.seeds_needed(effect)
        assert stats.power(effect, n) >= 0.8 and (n == 2 or stats.power(effect, n - 1) < 0.8)


def test_pearson_equals_values_computed_by_hand():
    found = stats.pearson([1, 2, 3, 4], [2, 1, 4, 3])
    assert found.r == pytest.approx(0.6) and found.n == 4
    t = 0.6 * math.sqrt(2 / (1 - 0.36))  # two degrees of freedom: P(|T| > t) has a closed form
    assert found.p_value == pytest.approx(1 - t / math.sqrt(2 + t * t))


WORDS = "the a cat dog sat ran on under over mat tree car by in old new red".split()


def spoiled(lines, every):
    """Replace the last three words of every n-th sentence."""
    return [
        line if i % every else " ".join([*line.split()[:-3], "x", "y", "z"])
        for i, line in enumerate(lines)
    ]


DRAW = random.Random(1)
REFERENCE = [" ".join(DRAW.choices(WORDS, k=9)) for _ in range(60)]
GOOD, BAD = spoiled(REFERENCE, 7), spoiled(REFERENCE, 2)


@pytest.mark.parametrize(("test", "samples"), [("bootstrap", 200), ("randomisation", 300)])
def test_a_clear_difference_is_found_and_identical_systems_show_none(test, samples):
    systems = {"baseline": BAD, "good": GOOD, "the same": BAD}
    found = stats.paired_bleu(systems, [REFERENCE], test, samples)
    assert [score["system"] for score in found["scores"]] == list(systems)
    baseline, good, same = found["scores"]
    assert baseline["p_value"] is None and good["p_value"] < 0.05
    assert same["p_value"] == 1  # not the 1 / (samples + 1) of a count of greater differences
    for score, lines in ((baseline, BAD), (good, GOOD), (same, BAD)):
        expected = BLEU().corpus_score(lines, [REFERENCE]).score
        assert score["score"] == pytest.approx(expected, rel=1e-12)
    for part in (f"{'bs' if test == 'bootstrap' else 'ar'}:{samples}", "seed:12345", "tok:13a"):
        assert part in found["signature"]
    chrf = stats.paired_bleu({"a": BAD, "b": GOOD}, [REFERENCE], samples=20, metric=CHRF())
    expected = CHRF().corpus_score(GOOD, [REFERENCE]).score
    assert chrf["scores"][1]["score"] == pytest.approx(expected, rel=1e-12)
