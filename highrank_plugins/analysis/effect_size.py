"""Measure the difference between two systems."""

from __future__ import annotations

import math

from highrank_plugins.analysis.significance import Runs, Summary, summarise


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
