"""Project the difference of two systems to a larger size: a line in the logarithm of compute.

The difference is fitted, not two curves: what both have in common, such as a loss that no model
gets below, cancels.
"""

import math
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from highrank_plugins.analysis.statistics import Runs, summarise
from highrank_plugins.common.formatting import Lines

MISFIT = 0.05  # p below which the sizes do not lie on a line


class SizeDifference(NamedTuple):
    """Hold the difference of a system from the baseline at one size, of a ladder of sizes.

    `variance` is that of a single run, with `freedom` degrees of freedom; that of the difference is
    `share` times as large.
    """

    compute: float
    difference: float
    variance: float
    freedom: float
    share: float

    def ends(self, confidence: float) -> tuple[float, float]:
        """Return the ends of the difference's interval, by Student's t."""
        return _around(self.difference, self.variance * self.share, self.freedom, confidence)


def size_difference(
    compute: float, own: Runs, base: Runs, deviation: float | None = None
) -> SizeDifference:
    """Return a difference with the variance of both systems' runs, or of a stated deviation."""
    if deviation is not None:  # of one run each, as exact as if many runs had shown it
        return SizeDifference(compute, mean(own) - mean(base), deviation**2, 1e9, 2)
    a, b = summarise(own), summarise(base)
    freedom = a.n + b.n - 2
    variance = ((a.n - 1) * a.sd**2 + (b.n - 1) * b.sd**2) / freedom
    return SizeDifference(compute, a.mean - b.mean, variance, freedom, 1 / a.n + 1 / b.n)


class Projection(NamedTuple):
    """Hold the value of a line at a compute with its interval, and its slope per decade.

    `p_misfit` tests whether the sizes lie on a line.
    """

    difference: float
    ends: tuple[float, float]
    slope: float
    p_misfit: float


def project(
    steps: Sequence[SizeDifference], compute: float, confidence: float = 0.95
) -> Projection:
    """Return the line through three or more differences over log compute, at `compute`.

    Few seeds tell a variance badly, so the weights come from a line through the variances'
    logarithms. The error is from the sizes' own variances, with the degrees of freedom of
    Satterthwaite 1946. If the line does not fit (p < 0.05), it is that of the fit where larger.
    """
    import numpy as np
    from scipy.special import digamma, fdtrc, polygamma

    computes, d, variance, freedom, share = (np.array(of) for of in zip(*steps, strict=True))
    x, half = np.log10(computes / compute), freedom / 2
    logs = np.log(variance) - digamma(half) + np.log(half)  # without the logarithm's bias
    tilt, level = np.polyfit(x, logs, 1, w=polygamma(1, half) ** -0.5)
    weights = 1 / (np.exp(level + tilt * x) * share)
    line = np.stack([np.ones_like(x), x])
    inverse = np.linalg.inv(line * weights @ line.T)
    at, slope = inverse @ (line * weights)  # of each difference in the value, in the slope
    value, extra = float(at @ d), len(steps) - 2
    misfit = float(weights @ (d - value - slope @ d * x) ** 2) / extra
    p_misfit = float(fdtrc(extra, freedom.sum(), misfit))
    parts = at**2 * variance * share
    error, own_freedom = float(parts.sum()), float(parts.sum() ** 2 / (parts**2 / freedom).sum())
    if p_misfit < MISFIT:
        error, own_freedom = max(error, misfit * float(inverse[0, 0])), extra
    ends = _around(value, error, own_freedom, confidence)
    return Projection(value, ends, float(slope @ d), p_misfit)


def _around(value: float, error: float, freedom: float, confidence: float) -> tuple[float, float]:
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, (1 + confidence) / 2)) * math.sqrt(error)
    return value - half, value + half


def projection_figure(
    arm: str, steps: Sequence[SizeDifference], target: float, sure: float, axes: tuple[str, str]
) -> Lines:
    """Return the differences as they were measured, and the line with its band up to the target."""
    x = [one.compute for one in steps]
    first, grid = min(x), range(41)
    xs = [first * (target / first) ** (part / 40) for part in grid]
    line = [project(steps, at, sure) for at in xs]
    series = {
        f"{arm}, measured": (x, [one.difference for one in steps]),
        "line": (xs, [one.difference for one in line]),
        "upper end": (xs, [one.ends[1] for one in line]),
        "lower end": (xs, [one.ends[0] for one in line]),
    }
    return Lines(series, arm, axes, "logx", ("lower end", "upper end"))
