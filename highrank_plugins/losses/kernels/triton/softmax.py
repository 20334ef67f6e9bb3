"""Compute one softmax per row: an online log-sum-exp in a loop, the gradient in a second."""

from __future__ import annotations

import triton
import triton.language as tl

from highrank_plugins.losses.kernels.triton.function import (
    add_table_sums,
    exp_below,
    fast_exp,
    function_of,
    load_tables,
    no_table_sums,
    store_table_sums,
    times_slope,
)


@triton.jit(
    do_not_specialize=["rows"],
    do_not_specialize_on_alignment=[
        "target", "factor", "weights", "log_probs", "nll", "norms", "smooth_sum", "correct",
        "entropy", "square_norm", "tables", "table_sums",
    ],
)  # fmt: skip
def softmax_kernel(
    logits, row_stride, bias, target, factor, weights, log_probs,
    nll, norms, smooth_sum, correct, entropy, square_norm, tables, table_sums,
    rows, classes, width,
    rows_per_target: tl.constexpr,
    f: tl.constexpr,
    total: tl.constexpr, target_weight: tl.constexpr, smoothing_weight: tl.constexpr,
    z_weight: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write nll and, unless None, the other scores and the log-sum-exp of each row.

    It is written to `norms` [rows, 2] as two summands: the largest value, and the logarithm of the
    sum relative to it.
    With `factor`, logits [rows, classes] become their gradient, see `write_gradient`; `bias`
    [classes] is added to what is read; both have memory for `width` numbers, see `write_gradient`.
    Row r has target r // rows_per_target. Weights [rows, classes] take the place of the target's
    and of smoothing; `log_probs` [rows, classes] become log P.
    """
    wide: tl.constexpr = nll.dtype.element_ty
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    start_of_row = logits + row * row_stride
    label = tl.load(target + row // rows_per_target, mask=real, other=0)
    t = load_tables(tables, f)
    # read before anything is written: the second loop overwrites it
    at_target = tl.load(start_of_row + label, mask=real, other=0.0).to(wide)
    if bias is not None:
        at_target += tl.load(bias + label).to(wide)

    top = tl.full((ROWS,), float("-inf"), wide)
    norm = tl.zeros((ROWS,), wide)
    sums = tl.zeros((ROWS,), wide)
    # the target is right if it is the first of the largest logits, as in torch
    before = tl.full((ROWS, COLUMNS), float("-inf"), wide)
    spread = tl.zeros((ROWS,), wide)  # Σ_x e^(f − top) (top − f)
    weight_sum = tl.zeros((ROWS,), wide)
    for start in range(0, classes, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = real[:, None] & (column < classes)[None, :]
        z = load_logits(start_of_row, real, column, bias, classes, width, wide)
        value = tl.where((column < classes)[None, :], function_of(z, f, t), float("-inf"))
        here = tl.max(value, 1)
        if correct is not None:
            earlier = column[None, :] < label[:, None]
            before = tl.maximum(before, tl.where(earlier, value, float("-inf")))
        if smooth_sum is not None:
            sums += tl.sum(tl.where(inside, value, 0.0), 1)
        higher = tl.maximum(top, here)
        shift = tl.where(higher == float("-inf"), 0.0, higher)  # all biases of the tile are −∞
        if entropy is not None:
            below = value - shift[:, None]
            parts = fast_exp(below)
            risen = tl.where(norm > 0, shift - top, 0.0)
            spread = (spread + norm * risen) * fast_exp(top - shift)
            spread -= tl.sum(parts * tl.where(parts > 0, below, 0.0), 1)
        if weights is not None:
            weight_sum += tl.sum(load_weights(weights, row, column, classes, inside, wide), 1)
        norm = norm * fast_exp(top - shift) + tl.sum(fast_exp(value - shift[:, None]), 1)
        top = higher

    log_sum = tl.log(norm)
    lse = top + log_sum
    target_value = function_of(at_target, f, t)
    tl.store(nll + row, log_sum + (top - target_value), mask=real)  # large numbers first
    if norms is not None:
        tl.store(norms + 2 * row, top, mask=real)
        tl.store(norms + 2 * row + 1, log_sum, mask=real)
    if smooth_sum is not None:
        tl.store(smooth_sum + row, classes * (log_sum + (top - sums / classes)), mask=real)
    if correct is not None:
        wins = (target_value >= top) & (target_value > tl.max(before, 1))
        tl.store(correct + row, wins, mask=real)
    if entropy is not None:
        tl.store(entropy + row, log_sum + spread / norm, mask=real)
    if square_norm is not None:
        tl.store(square_norm + row, lse * lse, mask=real)
    if log_probs is not None:
        for start in range(0, classes, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            z = load_logits(start_of_row, real, column, bias, classes, width, wide)
            value = (function_of(z, f, t) - top[:, None]) - log_sum[:, None]
            place = log_probs + (row * classes)[:, None] + column[None, :]
            tl.store(place, value, mask=real[:, None] & (column < classes)[None, :])
    if factor is not None:
        tl.debug_barrier()  # every thread has read its logits
        scale = tl.load(factor + row, mask=real, other=0.0)
        more = scale * (2 * z_weight) * lse if z_weight > 0 else None
        write_gradient(
            start_of_row, real, label, top, log_sum, scale, more, bias, classes, width, t,
            table_sums, weights, weight_sum, row, f, total, target_weight, smoothing_weight,
            COLUMNS,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=["rows"],
    do_not_specialize_on_alignment=[
        "target", "factor", "norm_weight", "norms", "tables", "table_sums",
    ],
)  # fmt: skip
def gradient_kernel(
    logits, row_stride, target, factor, norm_weight, norms, tables, table_sums, rows, classes,
    width, rows_per_target: tl.constexpr, f: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Turn logits [rows, classes] into [factor (P − 1[x = y]) + norm_weight P] f'.

    Each row's log-sum-exp is given by `softmax_kernel`; norm_weight, that of the z-loss, may be
    None.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    label = tl.load(target + row // rows_per_target, mask=real, other=0)
    top = tl.load(norms + 2 * row, mask=real, other=0.0)
    log_sum = tl.load(norms + 2 * row + 1, mask=real, other=0.0)
    scale = tl.load(factor + row, mask=real, other=0.0)
    more = None
    if norm_weight is not None:
        more = tl.load(norm_weight + row, mask=real, other=0.0)
    write_gradient(
        logits + row * row_stride, real, label, top, log_sum, scale, more, None, classes,
        width, load_tables(tables, f), table_sums, None, scale, row,
        f, 1.0, 1.0, 0.0, COLUMNS,
    )  # fmt: skip


@triton.jit
def write_gradient(
    start_of_row, real, label, top, log_sum, scale, more, bias, classes, width, t, table_sums,
    weights, weight_sum, row,
    f: tl.constexpr,
    total: tl.constexpr, target_weight: tl.constexpr, smoothing_weight: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Turn logits into [scale (total P − target_weight 1[x = y] − smoothing_weight) + more P] f'.

    With weights w it is [scale ((Σw) P − w) + more P] f'. `more` may be None. The gradients of f's
    learned numbers `t` are added up in `table_sums`.
    With `width`, a multiple of 16, the memory behind a row is read and written as well, because
    Triton would take other rows number by number.
    """
    wide: tl.constexpr = top.dtype
    narrow: tl.constexpr = start_of_row.dtype.element_ty
    sums = no_table_sums(table_sums, f, COLUMNS, wide)
    for start in range(0, classes, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = real[:, None] & (column < classes)[None, :]
        z = load_logits(start_of_row, real, column, bias, classes, width, wide)
        prob = exp_below(function_of(z, f, t), top[:, None], log_sum[:, None])
        if weights is not None:
            grad = weight_sum[:, None] * prob
            grad -= load_weights(weights, row, column, classes, inside, wide)
        else:
            grad = total * prob - smoothing_weight
            grad = tl.where(column[None, :] == label[:, None], grad - target_weight, grad)
        grad = grad * scale[:, None]
        if more is not None:
            grad += more[:, None] * prob
        sums = add_table_sums(sums, table_sums, grad, z, inside, f, t)
        grad = times_slope(grad, z, f, t)
        if width is not None:
            grad = tl.where((column < classes)[None, :], grad, 0.0)
        place = start_of_row[:, None] + column[None, :]
        tl.store(place, grad.to(narrow), mask=held(real, column, classes, width))
    store_table_sums(table_sums, sums, f, t)


@triton.jit
def load_weights(weights, row, column, classes, inside, wide: tl.constexpr):
    """Load a tile of weights [rows, classes], 0 outside."""
    place = weights + (row * classes)[:, None] + column[None, :]
    return tl.load(place, mask=inside, other=0.0).to(wide)


@triton.jit
def load_logits(start_of_row, real, column, bias, classes, width, wide: tl.constexpr):
    """Load a tile of logits with its bias, 0 outside."""
    place = start_of_row[:, None] + column[None, :]
    z = tl.load(place, mask=held(real, column, classes, width), other=0.0).to(wide)
    if bias is not None:
        within = column < (classes if width is None else width)
        z += tl.load(bias + column, mask=within, other=0.0).to(wide)[None, :]
    if width is not None:
        z = tl.where((column < classes)[None, :], z, 0.0)
    return z


@triton.jit
def held(real, column, classes, width):
    """Return which numbers of a tile are in the memory of its rows."""
    return real[:, None] & (column < (classes if width is None else width))[None, :]
