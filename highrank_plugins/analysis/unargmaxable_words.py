"""Find words that no context can make the most probable one, and sets that none puts on top."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from highrank_plugins.common.formatting import Progress, silent
from highrank_plugins.common.names import layer_name
from highrank_plugins.heads import Head

NOISE = 1e-7  # the solver's tolerance, and the resolution of float32 weights
ROUNDING = 1e-12  # relative to the largest logit; a smaller lead may be rounding error
STEPS = 100  # search steps; classes that can win mostly do so within 25
STEP = 4  # constraints added to a linear program at a time, for each of its variables
_INFEASIBLE = 2  # HiGHS, as scipy calls its answers
OVERSHOOT, PUSH = 1.5, 0.01  # shares of the gap to the best rival, and of the distance to it


def unargmaxable(weight: Tensor, bias: Tensor | None = None, progress: Progress = silent) -> Tensor:
    """Return classes c for which no h has w_c·h + b_c > w_j·h + b_j for all j ≠ c (Grivas 2022).

    Most classes are cleared quickly: c wins in a search that starts at h = w_c and steps away from
    the winning rival (Agmon 1954, Motzkin and Schoenberg 1954). A linear program decides each of
    the others exactly (`top_margin`). Equal rows with equal biases are never strictly above each
    other, so all of them are listed.

    Args:
        weight: [M, d]; bias: [M].
    Returns:
        class ids, ascending, int64.
    """
    wide, offsets = _checked(weight, bias)
    at_once = max(1, 2**22 // len(wide))  # contexts whose logits [n, M] are in memory
    walked = [_walk(wide, offsets, classes) for classes in torch.arange(len(wide)).split(at_once)]
    undecided = progress(torch.cat(walked).tolist(), "linear programs")
    found = [c for c in undecided if top_margin(wide, offsets, [c]) <= NOISE]
    return torch.tensor(found, dtype=torch.int64)


def unargmaxable_classes(head: Head, progress: Progress = silent) -> Tensor:
    """Apply `unargmaxable` to a softmax whose pointwise function keeps the order of logits."""
    if not ranks_linearly(head):
        raise ValueError(
            f"unargmaxable classes: not applicable to {layer_name(head)}: only a softmax ranks its "
            "classes by logits that are linear in the features, and its pointwise function must "
            "increase (is_increasing)"
        )
    bias = None if head.bias is None else head.bias.detach()
    return unargmaxable(head.weight.detach(), bias, progress)


def ranks_linearly(head: Head) -> bool:
    """Whether the order of the probabilities is that of logits that are linear in the features."""
    return head.linear_logits and head.pointwise.is_increasing


def _checked(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    wide = weight.detach().double().cpu()
    offsets = torch.zeros(len(wide)) if bias is None else bias.detach().cpu()
    if not (wide.isfinite().all() and offsets.isfinite().all()):
        raise ValueError("weight or bias has entries that are not finite")
    return wide, offsets.double()


def _walk(weight: Tensor, offsets: Tensor, classes: Tensor) -> Tensor:
    """Return the `classes` for which a search of `STEPS` steps finds no h where they win."""
    h = weight[classes]
    for _ in range(STEPS):
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


def reach(
    weight: Tensor, bias: Tensor | None, order: Sequence[int], levels: Tensor | None = None
) -> tuple[int, int | None]:
    """Return the largest m ≤ len(order) for which each of the sets order[:1] … order[:m] can lead.

    A set leads at h if all its logits w_c·h + b_c are above all others (Basri and Jacobs 2026). A
    set may lead although a smaller one cannot, so all sets up to m count. The second number is the
    largest m whose logits can also have the differences of `levels`; None without these.

    Args:
        weight: [M, d]; bias: [M]; order: different classes, fewer than M.
        levels: log-probabilities of `order`, descending.
    """
    wide, offsets = _checked(weight, bias)
    given = -torch.arange(float(len(order))) if levels is None else levels
    exact, beyond = 0, len(order) + 1  # what has the differences contains fewer that have them
    while beyond - exact > 1:
        m = min(2 * exact or 1, (exact + beyond) // 2)
        if top_margin(wide, offsets, order[:m], given[:m]) > NOISE:
            exact = m
        else:
            beyond = m
    sets = exact  # in this order, so that all smaller sets lead, too
    while sets < len(order) and top_margin(wide, offsets, order[: sets + 1]) > NOISE:
        sets += 1
    return sets, None if levels is None else exact


def top_margin(
    weight: Tensor, offsets: Tensor, chosen: Sequence[int], levels: Tensor | None = None
) -> float:
    """Return how far the chosen classes can exceed all others: above `NOISE` if they can.

    HiGHS solves the linear program of `_solved` with the others that need it. Those that exceed θ
    are added until none does (cutting planes), or the margin is known to be positive. Rows are
    relative to the mean of the chosen ones and divided by the longest, and without levels
    biases by the largest one, so that δ has no unit.
    """
    rows, gaps = weight - weight[chosen].mean(0), offsets - offsets[chosen].mean()
    others = np.setdiff1d(np.arange(len(weight)), chosen)
    longest = float(rows[others].norm(dim=1).max()) or 1.0  # all rows, or biases, may be the same
    is_fixed = levels is not None
    unit = longest if is_fixed else float(gaps[others].abs().max()) or 1.0
    logits_of = torch.column_stack([rows / longest, gaps / unit]).numpy()  # [M, d + 1], of (x, t)
    box = math.inf if is_fixed else 1.0
    limits = [(-box, box)] * rows.size(1) + [(float(is_fixed), 1.0), (-math.inf, math.inf)]
    limits.append((-math.inf, math.inf if levels is None else 1 / longest))
    given = None if levels is None else (levels - levels[-1]).double().numpy() / longest
    own, their = logits_of[chosen], logits_of[others]
    needed = np.argsort(their @ (their.mean(0) - own.mean(0)))  # the nearest first
    needed = needed[: STEP * len(limits)]
    while True:
        found = _solved(own, their[needed], limits, given)
        if found is None:
            return -math.inf
        *point, theta, margin = found
        if margin <= NOISE:
            return margin  # further constraints can only lower it
        excess = their @ point - theta + (0.0 if given is None else margin)
        excess[needed] = -math.inf  # these hold up to the solver's tolerance
        lead = (own @ point).min() - (their @ point).max()
        if excess.max() <= NOISE or lead > 10 * NOISE:
            return min(margin, lead)
        worst = excess.argsort()[::-1][: STEP * len(limits)]
        needed = np.append(needed, worst[excess[worst] > NOISE])


def _solved(
    own: np.ndarray, their: np.ndarray, limits: list[tuple[float, float]], given: np.ndarray | None
) -> np.ndarray | None:
    """Return (x, t, θ, δ) of the program for some of the others; None if no point is allowed.

    Classes can lead at some h = x / t, or far along x (t = 0), if and only if the linear program

        maximise δ subject to w_i·x + b_i t ≥ θ + δ for chosen i, w_j·x + b_j t ≤ θ for all others,
        |x_k| ≤ 1, 0 ≤ t ≤ 1

    has an optimum above 0: it is homogeneous in (x, t), so that the box excludes nothing. With
    `given` levels, t = 1, the chosen logits have exactly these differences, and δ ≤ 1 nat.
    """
    from scipy.optimize import linprog

    ones, others = np.ones(len(own)), np.ones(len(their))
    rivals, more = np.column_stack([their, -others, 0 * others]), {}
    if given is None:
        rows = np.vstack([np.column_stack([-own, ones, ones]), rivals])
    else:
        rows = np.column_stack([their, -others, others])
        more = {"A_eq": np.column_stack([own, -ones, 0 * ones]), "b_eq": given}
    result = linprog(
        np.append(np.zeros(len(limits) - 1), -1.0),
        A_ub=rows, b_ub=np.zeros(len(rows)), bounds=limits, method="highs", **more,
    )  # fmt: skip
    if result.x is None and result.status != _INFEASIBLE:
        raise FloatingPointError(f"the solver HiGHS found no answer: {result.message}")
    return result.x
