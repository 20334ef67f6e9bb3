"""Compute the mixture of every class of a MoS: label smoothing, and whether targets win.

A program handles one token. A thread holds all K components of its columns, in tuples of tiles, so
threads exchange nothing within the loops. K is compiled in.
"""

from __future__ import annotations

import triton
import triton.language as tl

from highrank_plugins.losses.kernels.triton.function import (
    add_table_sums,
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
        "log_norm", "log_prior", "target", "factor", "smooth_sum", "share", "correct", "entropy",
        "tables", "table_sums",
    ]
)  # fmt: skip
def mixture_kernel(
    logits, token_stride, component_stride,
    log_norm, log_prior, target, factor,
    smooth_sum, share, correct, entropy, tables, table_sums,
    classes,
    components: tl.constexpr,
    f: tl.constexpr,
    target_weight: tl.constexpr, smoothing_weight: tl.constexpr, z_weight: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write scores of the mixture, and share with the gradient, each unless None.

    With weights w_x on −log P_x and q_kx = π_k P_kx / P_x, share a_k is Σ_x w_x q_kx, and logits
    [n, K, M] become factor [P_kx (a_k + 2 z_weight lse_k) − w_x q_kx] f'. In the log domain
    nothing underflows.

    Args:
        log_norm: log-sum-exp of each component's values [n, K].
    """
    wide: tl.constexpr = log_norm.dtype.element_ty
    narrow: tl.constexpr = logits.dtype.element_ty
    token = tl.program_id(0).to(tl.int64)
    label = tl.load(target + token)
    t = load_tables(tables, f)
    start_of_token = logits + token * token_stride
    # log P_kx is f minus lse, log π_k P_kx is f minus shift
    lse, shift = load_shifts(log_norm, log_prior, token * components, components)

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
        values = load_tiles(place, inside, component_stride, components, wide)
        joint, top = log_joint(values, shift, components, f, t)
        parts, total = exponentials(joint, top, components)
        log_mixture = tl.where(inside, top + fast_log(total), float("-inf"))
        if correct is not None:
            at_label = tl.where(column == label, log_mixture, at_label)
            before = tl.maximum(before, tl.where(column < label, log_mixture, float("-inf")))
            after = tl.maximum(after, tl.where(column > label, log_mixture, float("-inf")))
        if smooth_sum is not None:
            sums -= tl.where(inside, log_mixture, 0.0)
        if entropy is not None:
            prob = tl.exp(log_mixture)
            spread -= prob * tl.where(prob > 0, log_mixture, 0.0)
        if share is not None:
            weight = class_weight(column, label, target_weight, smoothing_weight, wide) / total
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
        for j in tl.static_range(components):
            own = own + (tl.sum(shares[j], 0) + 2 * z_weight * lse[j],)
            tl.store(share + token * components + j, own[j] - 2 * z_weight * lse[j])
        table = no_table_sums(table_sums, f, COLUMNS, wide)
        for start in range(0, classes, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = column < classes
            place = start_of_token + column
            values = load_tiles(place, inside, component_stride, components, wide)
            joint, top = log_joint(values, shift, components, f, t)
            parts, total = exponentials(joint, top, components)
            weight = class_weight(column, label, target_weight, smoothing_weight, wide) / total
            for j in tl.static_range(components):
                log_prob = joint[j] + (shift[j] - lse[j])
                grad = scale * (tl.exp(log_prob) * own[j] - parts[j] * weight)
                table = add_table_sums(table, table_sums, grad, values[j], inside, f, t)
                grad = times_slope(grad, values[j], f, t)
                tl.store(place, grad.to(narrow), mask=inside)
                place = place + component_stride
        store_table_sums(table_sums, table, f, t)


@triton.jit
def load_shifts(log_norm, log_prior, row, components: tl.constexpr):
    """Load the log-sum-exp of each component, and the same minus log π."""
    lse = ()
    shift = ()
    for j in tl.static_range(components):
        norm = tl.load(log_norm + row + j)
        lse = lse + (norm,)
        shift = shift + (norm - tl.load(log_prior + row + j),)
    return lse, shift


@triton.jit
def log_joint(values, shift, components: tl.constexpr, f: tl.constexpr, t):
    """Return log π_k P_kx of each component, and the largest, or 0 where that is −∞."""
    joint = ()
    top = tl.full(values[0].shape, float("-inf"), values[0].dtype)
    for j in tl.static_range(components):
        joint = joint + (function_of(values[j], f, t) - shift[j],)
        top = tl.maximum(top, joint[j])
    return joint, tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def exponentials(joint, top, components: tl.constexpr):
    """Return e^(joint − top) of each component, and their sum."""
    parts = ()
    total = tl.zeros(top.shape, top.dtype)
    for j in tl.static_range(components):
        parts = parts + (tl.exp(joint[j] - top),)
        total += parts[j]
    return parts, total


@triton.jit
def class_weight(
    column, label, target_weight: tl.constexpr, smoothing_weight: tl.constexpr, wide: tl.constexpr
):  # fmt: skip
    """Return w_x."""
    weight = tl.full(column.shape, smoothing_weight, wide)
    return tl.where(column == label, weight + target_weight, weight)


@triton.jit
def add_products(shares, parts, weight, components: tl.constexpr):
    """Return shares + parts · weight, for each component."""
    new = ()
    for j in tl.static_range(components):
        new = new + (shares[j] + parts[j] * weight,)
    return new
