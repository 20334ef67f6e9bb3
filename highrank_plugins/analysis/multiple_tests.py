"""Correct p-values for several systems, and correlate two measures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Correlation(NamedTuple):
    """Hold Pearson's r, its two-sided p-value, and the number of points."""

    r: float
    p_value: float
    n: int


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for testing m hypotheses, in the order given   (Holm 1979).

    The i-th smallest becomes max_{j≤i} min(1, (m − j + 1) p_(j)); rejecting those below α errs
    anywhere with probability α at most.

    Raises:
        ValueError: a p-value outside [0, 1].
    """
    for p in p_values:
        if not 0 <= p <= 1:
            raise ValueError(f"p-values must lie in [0, 1], got {p}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for before, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - before) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def pearson(x: Sequence[float], y: Sequence[float]) -> Correlation:
    """Correlate two measures, e.g. rank and perplexity over a grid of models.

    p is that of r = 0 for normal x and y (t with n − 2 degrees of freedom).

    Raises:
        ValueError: fewer than three points, different lengths, a measure that does not vary, NaN.
    """
    from scipy.stats import pearsonr

    if len(x) != len(y) or len(x) < 3:
        raise ValueError(f"pearson: expected three pairs or more, got {len(x)} and {len(y)} values")
    if len(set(x)) == 1 or len(set(y)) == 1:
        raise ValueError("pearson: a measure that is the same everywhere correlates with nothing")
    result = pearsonr(list(map(float, x)), list(map(float, y)))
    if result.statistic != result.statistic:
        raise ValueError("pearson: a value is NaN or infinite")
    return Correlation(float(result.statistic), float(result.pvalue), len(x))
