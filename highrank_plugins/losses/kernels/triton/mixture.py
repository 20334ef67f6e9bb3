"""What needs the mixture of every class of a MoS: label smoothing, and whether targets win.

Tiles are tokens × components × columns, here N, K, C.
"""

from __future__ import annotations

import triton
import triton.language as tl

from highrank_plugins.losses.kernels.triton.gss import gss, times_gss_slope


@triton.jit
def mixture_kernel(
    logits, log_norm, log_prior, target, factor,
    smooth_sum, share, correct,
    tokens, classes,
    components: tl.constexpr,
    c: tl.constexpr, k: tl.constexpr,
    target_weight: tl.constexpr, smoothing_weight: tl.constexpr,
    TOKENS: tl.constexpr, COMPONENTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Σ_x −log P_x, whether the target wins, and share with the gradient, each unless None.

    With weights w_x on −log P_x and q_kx = π_k P_kx / P_x, share a_k is Σ_x w_x q_kx, and logits
    [n, K, M] become factor (P_kx a_k − w_x q_kx) f'. All of it by logarithms: nothing underflows.

    Args:
        log_norm: log-sum-exp of each component's values [n, K].
        components, COMPONENTS: K, and the power of two that holds it.
    """
    wide: tl.constexpr = log_norm.dtype.element_ty
    narrow: tl.constexpr = logits.dtype.element_ty
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    component = tl.arange(0, COMPONENTS)
    real = token < tokens
    real_NK = real[:, None] & (component < components)[None, :]
    row_NK = token[:, None] * components + component[None, :]
    lse_NK = tl.load(log_norm + row_NK, mask=real_NK, other=0.0)
    prior_NK = tl.load(log_prior + row_NK, mask=real_NK, other=0.0)
    # log P_kx is f minus lse, log π_k P_kx is f minus this: −∞ for components that are none
    shift_NK = tl.where((component < components)[None, :], lse_NK - prior_NK, float("inf"))
    label = tl.load(target + token, mask=real, other=0)
    start_NK = logits + row_NK * classes

    sums = tl.zeros((TOKENS,), wide)
    share_NK = tl.zeros((TOKENS, COMPONENTS), wide)
    top = tl.full((TOKENS,), float("-inf"), wide)
    best = tl.zeros((TOKENS,), tl.int64)
    for start in range(0, classes, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        column_NC = (column < classes)[None, :] & real[:, None]
        inside = real_NK[:, :, None] & (column < classes)[None, None, :]
        z = tl.load(start_NK[:, :, None] + column[None, None, :], mask=inside, other=0.0).to(wide)
        log_joint = gss(z, c, k) - shift_NK[:, :, None]
        log_mixture_NC = log_sum_exp(log_joint)
        if correct is not None:
            masked = tl.where(column_NC, log_mixture_NC, float("-inf"))
            here = tl.max(masked, 1)
            best = tl.where(here > top, start + tl.argmax(masked, 1), best)
            top = tl.maximum(top, here)
        if smooth_sum is not None:
            sums -= tl.sum(tl.where(column_NC, log_mixture_NC, 0.0), 1)
        if share is not None:
            posterior = weighted_posterior(
                log_joint, log_mixture_NC, column, label, target_weight, smoothing_weight
            )
            share_NK += tl.sum(tl.where(inside, posterior, 0.0), 2)

    if smooth_sum is not None:
        tl.store(smooth_sum + token, sums, mask=real)
    if correct is not None:
        tl.store(correct + token, best == label, mask=real)
    if share is not None:
        tl.store(share + row_NK, share_NK, mask=real_NK)
        tl.debug_barrier()  # every thread has read its logits
        scale = tl.load(factor + token, mask=real, other=0.0)[:, None, None]
        for start in range(0, classes, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inside = real_NK[:, :, None] & (column < classes)[None, None, :]
            place = start_NK[:, :, None] + column[None, None, :]
            z = tl.load(place, mask=inside, other=0.0).to(wide)
            value = gss(z, c, k)
            log_joint = value - shift_NK[:, :, None]
            posterior = weighted_posterior(
                log_joint, log_sum_exp(log_joint), column, label, target_weight, smoothing_weight
            )
            grad = tl.exp(value - lse_NK[:, :, None]) * share_NK[:, :, None] - posterior
            tl.store(place, times_gss_slope(grad * scale, z, c, k).to(narrow), mask=inside)


@triton.jit
def log_sum_exp(log_joint):
    """Over the components: [N, K, C] → [N, C]."""
    top = tl.max(log_joint, 1)
    shift = tl.where(top == float("-inf"), 0.0, top)  # a class that every component rules out
    return top + tl.log(tl.sum(tl.exp(log_joint - shift[:, None, :]), 1))


@triton.jit
def weighted_posterior(
    log_joint,
    log_mixture_NC,
    column,
    label,
    target_weight: tl.constexpr,
    smoothing_weight: tl.constexpr,
):
    """w_x q_kx [N, K, C]."""
    posterior = tl.exp(log_joint - log_mixture_NC[:, None, :])
    smooth = posterior * smoothing_weight
    target_NC = column[None, :] == label[:, None]
    return tl.where(target_NC[:, None, :], smooth + posterior * target_weight, smooth)
