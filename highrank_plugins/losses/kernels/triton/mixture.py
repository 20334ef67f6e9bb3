"""Compute the mixture of every class of a MoS: label smoothing, and whether targets win.

A program handles one token. A thread holds all K components of its columns, in tuples of tiles, so
threads exchange nothing within the loops. K is compiled in.
"""

from __future__ import annotations

import triton
import triton.language as tl

from highrank_plugins.losses.kernels.triton.function import (
    add_table_sums,
    exp_below,
    fast_log,
    function_of,
    load_tables,
    no_table_sums,
    store_table_sums,
    times_slope,
)
from highrank_plugins.losses.kernels.triton.tree import load_tiles


@triton.jit(
    do_not_specialize_on_alignment=[
        "norms", "log_prior", "target", "factor", "weights", "log_probs", "smooth_sum", "share",
        "correct", "entropy", "tables", "table_sums",
    ]
)  # fmt: skip
def mixture_kernel(
    logits, token_stride, component_stride,
    norms, log_prior, target, factor, weights, log_probs,
    smooth_sum, share, correct, entropy, tables, table_sums,
    classes, width,
    components: tl.constexpr,
    f: tl.constexpr,
    target_weight: tl.constexpr, smoothing_weight: tl.constexpr, z_weight: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write scores of the mixture, and share with the gradient, each unless None.

    With weights w_x on −log P_x and q_kx = π_k P_kx / P_x, share a_k is Σ_x w_x q_kx, and logits
    [n, K, M] become factor [P_kx (a_k + 2 z_weight lse_k) − w_x q_kx] f'. In the log domain
    nothing underflows. Weights [n, M] take the place of the target's and of smoothing; `log_probs`
    [n, M] become log P. `norms` [n, K, 2] are those of `softmax_kernel`; each row has memory for
    `width` numbers, see `softmax.write_gradient`.
    """
    wide: tl.constexpr = norms.dtype.element_ty
    narrow: tl.constexpr = logits.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    label = tl.load(target + token)
    t = load_tables(tables, f)
    start_of_token = logits + token * token_stride
    held = classes if width is None else width
    # log π_k P_kx is f − top − rest
    tops, rests, log_priors = load_norms(norms, log_prior, token * components, components)

    shares = ()
    for _ in tl.static_range(components):
        shares = shares + (tl.zeros((COLUMNS,), wide),)
    sums = tl.zeros((COLUMNS,), wide)
    at_label = tl.full((COLUMNS,), float("-inf"), wide)
    before = tl.full((COLUMNS,), float("-inf"), wide)
    after = tl.full((COLUMNS,), float("-inf"), wide)
    spread = tl.zeros((COLUMNS,), wide)
    for start in range(0, classes, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < classes
        place = start_of_token + column
        values = load_logits(place, column, component_stride, classes, width, components, wide)
        joint, top = log_joint(values, tops, rests, components, f, t)
        parts, total = exponentials(joint, top, components)
        log_mixture = tl.where(inside, top + fast_log(total), float("-inf"))
        if correct is not None:
            at_label = tl.where(column == label, log_mixture, at_label)
            before = tl.maximum(before, tl.where(column < label, log_mixture, float("-inf")))
            after = tl.maximum(after, tl.where(column > label, log_mixture, float("-inf")))
        if log_probs is not None:
            tl.store(log_probs + token * classes + column, log_mixture, mask=inside)
        if smooth_sum is not None:
            sums -= tl.where(inside, log_mixture, 0.0)
        if entropy is not None:
            prob = tl.exp(log_mixture)
            spread -= prob * tl.where(prob > 0, log_mixture, 0.0)
        if share is not None:
            weight = class_weight(
                weights, token * classes, column, inside, label, target_weight, smoothing_weight,
                total,
            )  # fmt: skip
            shares = add_products(shares, parts, tl.where(inside, weight, 0.0), components)

    if smooth_sum is not None:
        tl.store(smooth_sum + token, tl.sum(sums, 0))
    if entropy is not None:
        tl.store(entropy + token, tl.sum(spread, 0))
    if correct is not None:  # takes the first of equal ones, as torch does
        found = tl.max(at_label, 0)
        tl.store(correct + token, (found > tl.max(before, 0)) & (found >= tl.max(after, 0)))
    if share is not None:
        tl.debug_barrier()  # every thread has read its logits
        scale = tl.load(factor + token)
        own = ()
        apart = ()  # log π_k − log |own|
        for j in tl.static_range(components):
            row = token * components + j
            own_share = tl.sum(shares[j], 0)
            tl.store(share + row, own_share)
            if z_weight > 0:
                lse = tl.load(norms + 2 * row) + tl.load(norms + 2 * row + 1)
                own_share += 2 * z_weight * lse
            own = own + (own_share,)
            apart = apart + (log_priors[j] - tl.log(tl.abs(own_share)),)
        table = no_table_sums(table_sums, f, COLUMNS, wide)
        for start in range(0, classes, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < classes
            place = start_of_token + column
            values = load_logits(place, column, component_stride, classes, width, components, wide)
            joint, top = log_joint(values, tops, rests, components, f, t)
            parts, total = exponentials(joint, top, components)
            weight = class_weight(
                weights, token * classes, column, inside, label, target_weight, smoothing_weight,
                total,
            )  # fmt: skip
            for j in tl.static_range(components):
                every = exp_below(joint[j], 0.0, apart[j])  # P_kx own
                if z_weight > 0 or weights is not None:
                    every = tl.where(own[j] < 0, -every, every)
                grad = scale * (every - parts[j] * weight)
                table = add_table_sums(table, table_sums, grad, values[j], inside, f, t)
                grad = times_slope(grad, values[j], f, t)
                if width is not None:
                    grad = tl.where(inside, grad, 0.0)
                tl.store(place, grad.to(narrow), mask=column < held)
                place = place + component_stride
        store_table_sums(table_sums, table, f, t)


@triton.jit
def load_logits(
    place, column, stride, classes, width, components: tl.constexpr, wide: tl.constexpr
):  # fmt: skip
    """Load a tile of each component, `stride` numbers apart; 0 outside of the classes."""
    held = classes if width is None else width
    values = load_tiles(place, column < held, stride, components, wide)
    if width is not None:
        real = ()
        for j in tl.static_range(components):
            real = real + (tl.where(column < classes, values[j], 0.0),)
        values = real
    return values


@triton.jit
def load_norms(norms, log_prior, row, components: tl.constexpr):
    """Load both summands of each component's log-sum-exp, the second less log π; and log π."""
    tops = ()
    rests = ()
    log_priors = ()
    for j in tl.static_range(components):
        tops = tops + (tl.load(norms + 2 * (row + j)),)
        log_priors = log_priors + (tl.load(log_prior + row + j),)
        rests = rests + (tl.load(norms + 2 * (row + j) + 1) - log_priors[j],)
    return tops, rests, log_priors


@triton.jit
def log_joint(values, tops, rests, components: tl.constexpr, f: tl.constexpr, t):
    """Return log π_k P_kx of each component, and the largest, or 0 where that is −∞."""
    joint = ()
    top = tl.full(values[0].shape, float("-inf"), values[0].dtype)
    for j in tl.static_range(components):
        joint = joint + (function_of(values[j], f, t) - tops[j] - rests[j],)
        top = tl.maximum(top, joint[j])
    return joint, tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def exponentials(joint, top, components: tl.constexpr):
    """Return e^(joint − top) of each component, and their sum."""
    parts = ()
    total = tl.zeros(top.shape, top.dtype)
    for j in tl.static_range(components):
        parts = parts + (exp_below(joint[j], top, 0.0),)
        total += parts[j]
    return parts, total


@triton.jit
def class_weight(
    weights, start, column, inside, label,
    target_weight: tl.constexpr, smoothing_weight: tl.constexpr, total,
):  # fmt: skip
    """Return w_x / total, or 0 for a class that every component rules out."""
    if weights is not None:
        weight = tl.load(weights + start + column, mask=inside, other=0.0).to(total.dtype)
    else:
        weight = tl.full(column.shape, smoothing_weight, total.dtype)
        weight = tl.where(column == label, weight + target_weight, weight)
    return tl.where(total > 0, weight / total, 0.0)


@triton.jit
def add_products(shares, parts, weight, components: tl.constexpr):
    """Return shares + parts · weight, for each component."""
    new = ()
    for j in tl.static_range(components):
        new = new + (shares[j] + parts[j] * weight,)
    return new
