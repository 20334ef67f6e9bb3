"""Compare two systems by t-tests, from their runs or from published means and deviations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple


class Summary(NamedTuple):
    """Hold what a paper prints of n runs: mean and sample standard deviation (n − 1 below)."""

    mean: float
    sd: float
    n: int


class TTest(NamedTuple):
    """Hold t and its two-sided p-value."""

    statistic: float
    p_value: float


Runs = Summary | Sequence[float]


def summarise(runs: Runs) -> Summary:
    """Return mean, sample standard deviation and number of runs.

    Raises:
        ValueError: fewer than two runs, NaN, a negative deviation.
    """
    if not isinstance(runs, Summary):
        if len(runs) < 2:
            raise ValueError(f"a t-test needs at least two runs of each system, got {len(runs)}")
        numbers = [float(run) for run in runs]
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"a run has no number: {numbers}; leave it out or repeat it")
        return Summary(mean(numbers), stdev(numbers), len(numbers))
    if runs.n < 2 or not runs.sd >= 0 or not math.isfinite(runs.mean + runs.sd):
        raise ValueError(f"no summary of two or more runs: {runs}")
    return runs


def student_t(a: Runs, b: Runs) -> TTest:
    """Test whether two means are equal, two-sided and unpaired, with equal variances (Student).

    t = (m_a − m_b) / √(s² (1/n_a + 1/n_b)), s² the pooled variance, n_a + n_b − 2 degrees of
    freedom: the test of Parthiban et al. 2021.

    Args:
        a, b: runs of each system, or a `Summary` of them.
    Raises:
        ValueError: as `summarise`, or two deviations of 0.
    """
    return _t_test(a, b, equal_variances=True)


def welch_t(a: Runs, b: Runs) -> TTest:
    """Test whether two means are equal, two-sided and unpaired, with any variances (Welch 1947)."""
    return _t_test(a, b, equal_variances=False)


def _t_test(a: Runs, b: Runs, equal_variances: bool) -> TTest:
    from scipy.stats import ttest_ind_from_stats

    a, b = summarise(a), summarise(b)
    if a.sd == b.sd == 0:
        raise ValueError("both systems have a deviation of 0: are their runs one run, repeated?")
    statistic, p_value = ttest_ind_from_stats(*a, *b, equal_var=equal_variances)
    return TTest(float(statistic), float(p_value))
