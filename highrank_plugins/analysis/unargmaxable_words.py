"""Find words that no context can make the most probable one."""

import math

import numpy as np
import torch
from torch import Tensor

from highrank_plugins.common.names import layer_name
from highrank_plugins.common.progress import Progress, silent
from highrank_plugins.heads import Head

NOISE = 1e-7  # the solver's tolerance, and the resolution of float32 weights
ROUNDING = 1e-12  # relative to the largest logit; a smaller lead may be rounding error
STEPS = 100  # search steps; classes that can win mostly do so within 25
OVERSHOOT, PUSH = 1.5, 0.01  # shares of the gap to the best rival, and of the distance to it


def unargmaxable(
    weight: Tensor,
    bias: Tensor | None = None,
    bound: float | None = None,
    progress: Progress = silent,
) -> Tensor:
    """Return classes c for which no h has w_c·h + b_c > w_j·h + b_j for all j ≠ c (Grivas 2022).

    Most classes are cleared quickly: c wins in a search that starts at h = w_c and steps away from
    the winning rival (Agmon 1954, Motzkin and Schoenberg 1954). A linear program decides each of
    the others exactly (`argmax_margin`). Equal rows with equal biases are never strictly above each
    other, so all of them are listed.

    Args:
        weight: [M, d]; bias: [M].
        bound: only |h_i| ≤ bound counts (1 for the output of an LSTM); default all of R^d.
    Returns:
        class ids, ascending, int64.
    """
    wide, offsets = _checked(weight, bias, bound)
    at_once = max(1, 2**22 // len(wide))  # contexts whose logits [n, M] are in memory
    walked = [
        _walk(wide, offsets, classes, bound) for classes in torch.arange(len(wide)).split(at_once)
    ]
    undecided = progress(torch.cat(walked).tolist(), "linear programs")
    found = [c for c in undecided if argmax_margin(wide, offsets, c, bound) <= NOISE]
    return torch.tensor(found, dtype=torch.int64)


def unargmaxable_classes(
    head: Head, bound: float | None = None, progress: Progress = silent
) -> Tensor:
    """Apply `unargmaxable` to a softmax whose pointwise function keeps the order of logits."""
    if not ranks_linearly(head):
        raise ValueError(
            f"unargmaxable classes: not applicable to {layer_name(head)}: only a softmax ranks its "
            "classes by logits that are linear in the features, and its pointwise function must "
            "increase (is_increasing)"
        )
    bias = None if head.bias is None else head.bias.detach()
    return unargmaxable(head.weight.detach(), bias, bound, progress)


def ranks_linearly(head: Head) -> bool:
    """Whether the order of the probabilities is that of logits that are linear in the features."""
    return head.linear_logits and head.pointwise.is_increasing


def _checked(weight: Tensor, bias: Tensor | None, bound: float | None) -> tuple[Tensor, Tensor]:
    if weight.dim() != 2 or len(weight) < 2:
        raise ValueError(f"weight: expected [M, d] with M ≥ 2, got {tuple(weight.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias: expected [{len(weight)}], got {tuple(bias.shape)}")
    if bound is not None and not 0 < bound < math.inf:
        raise ValueError(f"bound must be a number above 0, got {bound}")
    wide = weight.detach().double().cpu()
    offsets = torch.zeros(len(wide)) if bias is None else bias.detach().cpu()
    if not (wide.isfinite().all() and offsets.isfinite().all()):
        raise ValueError("weight or bias has entries that are not finite")
    return wide, offsets.double()


def _walk(weight: Tensor, offsets: Tensor, classes: Tensor, bound: float | None) -> Tensor:
    """Return the `classes` for which a search of `STEPS` steps finds no h where they win."""
    h = weight[classes]
    for _ in range(STEPS):
        h = h if bound is None else h.clamp(-bound, bound)
        logits = h @ weight.t() + offsets
        rounding = ROUNDING * logits.abs().amax(1)
        own = logits.gather(1, classes.unsqueeze(1)).squeeze(1)
        best, rival = logits.scatter(1, classes.unsqueeze(1), -torch.inf).max(1)
        still = own - best <= rounding
        classes, h, gap, rival = classes[still], h[still], (best - own)[still], rival[still]
        away = weight[classes] - weight[rival]
        length = away.square().sum(1).clamp_min(1e-200)  # avoids 0 / 0 for equal rows
        h = h + away * (OVERSHOOT * gap / length + PUSH).unsqueeze(1)
    return classes


def argmax_margin(weight: Tensor, offsets: Tensor, c: int, bound: float | None = None) -> float:
    r"""Return how far class c can exceed all others: positive if it can win, else ≤ `NOISE`.

    c can win at some h = x / t, or far along x (t = 0), if and only if the linear program

        maximise δ subject to (w_c − w_j)·x + (b_c − b_j) t ≥ δ for all j ≠ c, |x_i| ≤ 1, 0 ≤ t ≤ 1

    has an optimum above 0: it is homogeneous in (x, t), so that the box excludes nothing. With a
    bound on features, |x_i| ≤ bound and t = 1. Differences of rows are divided by the longest, and
    without a bound biases by the largest one, so that δ has no unit. Solved by HiGHS.
    """
    from scipy.optimize import linprog

    others = torch.arange(len(weight)) != c
    rows, gaps = weight[c] - weight[others], offsets[c] - offsets[others]
    longest = rows.norm(dim=1).max()
    largest = gaps.abs().max() if bound is None else longest
    gaps = gaps / (float(largest) or 1.0)  # all rows, or all biases, may be the same
    limits = [(-1.0, 1.0)] * rows.size(1) + [(0.0, 1.0)]
    if bound is not None:
        limits = [(-bound, bound)] * rows.size(1) + [(1.0, 1.0)]
    rows = rows / (float(longest) or 1.0)
    result = linprog(
        np.append(np.zeros(len(limits)), -1.0),
        A_ub=np.column_stack([-rows.numpy(), -gaps.numpy(), np.ones(len(rows))]),
        b_ub=np.zeros(len(rows)),
        bounds=[*limits, (None, None)],
        method="highs",
    )
    if result.x is None:
        raise FloatingPointError(f"class {c}: the solver HiGHS found no answer: {result.message}")
    return float(result.x[-1])
