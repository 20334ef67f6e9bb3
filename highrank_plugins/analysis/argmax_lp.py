"""The linear program that says whether a class can win."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

NOISE = 1e-7  # the solver's tolerance, and what float32 weights resolve


def argmax_margin(weight: Tensor, offsets: Tensor, c: int, bound: float | None = None) -> float:
    r"""By how much class c can be above all others: positive if it can win, else at most `NOISE`.

    c can win at some h = x / t, or far along x (t = 0), if and only if the linear program

        maximise δ subject to (w_c − w_j)·x + (b_c − b_j) t ≥ δ for all j ≠ c, |x_i| ≤ 1, 0 ≤ t ≤ 1

    has an optimum above 0: it is homogeneous in (x, t), so that the box excludes nothing. With a
    bound on features, |x_i| ≤ bound and t = 1. Differences of rows are divided by the longest, and
    without a bound those of biases by the largest, so that δ has no unit. Solved by HiGHS.

    Args:
        weight: [M, d] in float64; offsets: b [M] in float64.
    Raises:
        FloatingPointError: HiGHS gives up (names the class, and says why).
    """
    others = torch.arange(len(weight)) != c
    rows, gaps = weight[c] - weight[others], offsets[c] - offsets[others]
    longest = rows.norm(dim=1).max()
    gaps = gaps / _scale(gaps.abs().max() if bound is None else longest)
    limits = [(-1.0, 1.0)] * rows.size(1) + [(0.0, 1.0)]
    if bound is not None:
        limits = [(-bound, bound)] * rows.size(1) + [(1.0, 1.0)]
    return _largest_delta((rows / _scale(longest)).numpy(), gaps.numpy(), limits, f"class {c}")


def _scale(largest: Tensor) -> float:
    return float(largest) or 1.0  # all rows, or all biases, are the same


def _largest_delta(
    rows: np.ndarray, gaps: np.ndarray, limits: list[tuple[float, float]], name: str
) -> float:
    """max δ with rows·x + gaps t ≥ δ, (x, t) within limits."""
    from scipy.optimize import linprog

    result = linprog(
        np.append(np.zeros(len(limits)), -1.0),
        A_ub=np.column_stack([-rows, -gaps, np.ones(len(rows))]),
        b_ub=np.zeros(len(rows)),
        bounds=[*limits, (None, None)],
        method="highs",
    )
    if result.x is None:
        raise FloatingPointError(f"{name}: HiGHS found no answer: {result.message}")
    return float(result.x[-1])
