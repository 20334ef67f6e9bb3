"""Measure the difference between two systems, and how many runs a test needs to find it."""

from __future__ import annotations

import math

from highrank_plugins.analysis.significance import Runs, Summary, summarise

MOST_RUNS = 1000  # a difference that needs more runs is called too small


def hedges_g(a: Runs, b: Runs) -> float:
    """Return (m_a − m_b) / s in pooled deviations, corrected for few runs (Hedges 1981).

    Raises:
        ValueError: as `summarise`, or two deviations of 0.
    """
    a, b = summarise(a), summarise(b)
    freedom = a.n + b.n - 2
    pooled = math.sqrt(((a.n - 1) * a.sd**2 + (b.n - 1) * b.sd**2) / freedom)
    if pooled == 0:
        raise ValueError(
            "both systems have a standard deviation of 0: check that no run is given twice"
        )
    return (a.mean - b.mean) / pooled * (1 - 3 / (4 * freedom - 1))


def confidence_interval(
    a: Runs, b: Runs, equal_variances: bool = True, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the ends of the t-test's confidence interval of m_a − m_b.

    Args:
        equal_variances: Student's interval, or Welch's.
    Raises:
        ValueError: as `summarise`.
    """
    from scipy.stats import t

    a, b = summarise(a), summarise(b)
    if equal_variances:
        freedom: float = a.n + b.n - 2
        pooled = ((a.n - 1) * a.sd**2 + (b.n - 1) * b.sd**2) / freedom
        error = math.sqrt(pooled * (1 / a.n + 1 / b.n))
    else:
        error = math.sqrt(a.sd**2 / a.n + b.sd**2 / b.n)
        freedom = _welch_freedom(a, b)
    half = float(t.ppf((1 + confidence) / 2, freedom)) * error
    return a.mean - b.mean - half, a.mean - b.mean + half


def _welch_freedom(a: Summary, b: Summary) -> float:
    u, v = a.sd**2 / a.n, b.sd**2 / b.n
    below = u**2 / (a.n - 1) + v**2 / (b.n - 1)
    return (u + v) ** 2 / below if below else a.n + b.n - 2


def runs_needed(a: Runs, b: Runs, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """Return the least number of runs of each system for which a t-test finds this difference.

    The observed means and deviations count as the true ones. With n runs of each, t follows a
    noncentral distribution with 2n − 2 degrees of freedom and noncentrality |m_a − m_b| √(n/2) / s,
    s² the mean of the two variances.

    Args:
        alpha: two-sided significance level; divide it by the number of systems for Holm's test.
        power: probability of finding the difference.
    Returns:
        The number, at least 2; None if `MOST_RUNS` are too few.
    Raises:
        ValueError: as `summarise`.
    """
    a, b = summarise(a), summarise(b)
    sd = math.sqrt((a.sd**2 + b.sd**2) / 2)
    if sd == 0:
        return 2 if a.mean != b.mean else None
    effect = abs(a.mean - b.mean) / sd
    if _power(effect, MOST_RUNS, alpha) < power:
        return None
    low, high = 1, MOST_RUNS  # power(low) < power ≤ power(high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(effect, middle, alpha) >= power else (middle, high)
    return high


def _power(effect: float, n: int, alpha: float) -> float:
    """Return P(|T| > critical), T = (Z + shift) / √(χ² / ν), as a mean over quantiles of χ².

    scipy's noncentral t loses all digits at the large shifts that few, similar runs have.
    """
    import numpy
    from scipy.stats import chi2, norm, t

    freedom, shift = 2 * n - 2, effect * math.sqrt(n / 2)
    shares = (numpy.arange(4096) + 0.5) / 4096
    bound = t.ppf(1 - alpha / 2, freedom) * numpy.sqrt(chi2.ppf(shares, freedom) / freedom)
    return float(numpy.mean(norm.sf(bound - shift) + norm.cdf(-bound - shift)))
