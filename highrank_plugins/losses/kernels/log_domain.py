"""Compute label-smoothed mixtures whose probabilities underflow, through their logarithms.

Suffixes of tensors are their shapes, see `heads.base`; N is a block of a chunk here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import cache_sized_blocks
from highrank_plugins.losses.plan import LossPlan, Scores

if TYPE_CHECKING:
    from highrank_plugins.losses.kernels.torch import Kernels, MixtureBlock, RecomputeLogits


def recompute_in_log_domain(
    kernels: Kernels,
    lost: Tensor,
    scores: Scores,
    block: MixtureBlock,
    recompute_logits: RecomputeLogits,
) -> None:
    """Write scores and gradients of the tokens `lost` again, computed in the log domain.

    Their logits have the gradient 0 so far.
    """
    _, components, classes = block.logits_NKM.shape
    blocks = cache_sized_blocks(len(lost), components * classes, lost.device)
    for a, b in blocks if len(lost) else ():
        part = lost[a:b]
        own = block.tokens(part)._replace(logits_NKM=recompute_logits(part))
        found = log_domain_pass(kernels, own)
        for whole, recomputed in zip(scores, found, strict=True):
            if whole is not None and recomputed is not None:
                whole[part] = recomputed
        if block.scale_N is not None:
            block.logits_NKM[part] = own.logits_NKM
            block.factor_NK[part] = own.factor_NK
            block.grad_prior_NK[part] = own.grad_prior_NK


def log_domain_pass(kernels: Kernels, block: MixtureBlock) -> Scores:
    """Return scores and write gradients under label smoothing where probabilities underflow.

    q_kx = π_k P_kx / P_x is computed from logarithms.
    """
    logits_NKM, log_prior_NK, target_N, scale_N, factor_NK, grad_prior_NK = block
    values_NKM, pullback = kernels.vjp(logits_NKM)
    log_parts_NKM = values_NKM.log_softmax(-1)
    log_joint_NKM = log_prior_NK.unsqueeze(-1) + log_parts_NKM
    log_mixture_NM = log_joint_NKM.logsumexp(1)
    nll_N = -log_mixture_NM.gather(-1, target_N.unsqueeze(-1)).squeeze(-1)
    smooth_sum_N = -log_mixture_NM.sum(-1)
    correct_N = log_mixture_NM.argmax(-1) == target_N if kernels.plan.accuracy else None
    entropy_N = entropy_of(log_mixture_NM.exp()) if kernels.plan.entropy else None
    log_norm_NK = values_NKM.logsumexp(-1) if kernels.plan.z_loss else None
    if scale_N is not None:
        weight_N1M = smoothing_weights(kernels.plan, log_mixture_NM, target_N).unsqueeze(1)
        # −∞ (every component rules a class out) must not be subtracted
        shift_NM = log_mixture_NM.masked_fill(log_mixture_NM == -torch.inf, 0)
        posterior_NKM = log_joint_NKM.sub_(shift_NM.unsqueeze(1)).exp_().mul_(weight_N1M)
        share_NK = posterior_NKM.sum(-1)
        factor_NK.copy_(scale_N.unsqueeze(-1).expand_as(factor_NK))
        torch.mul(factor_NK, share_NK, out=grad_prior_NK).neg_()
        if log_norm_NK is not None:
            share_NK = share_NK + 2 * kernels.plan.z_loss * log_norm_NK
        torch.mul(log_parts_NKM.exp_(), share_NK.unsqueeze(-1), out=values_NKM).sub_(posterior_NKM)
        kernels.write_gradient(values_NKM, pullback, factor_NK, logits_NKM)
    square_norm_N = None if log_norm_NK is None else log_norm_NK.square().sum(-1)
    return Scores(nll_N, smooth_sum_N, correct_N, entropy_N, square_norm_N)


def smoothing_weights(plan: LossPlan, like_NM: Tensor, target_N: Tensor) -> Tensor:
    """Return the weights w [N, M] of −log P_x: ε_i + α 1[x = y]."""
    index_N1 = target_N.unsqueeze(-1)
    weight_NM = torch.full_like(like_NM, plan.smoothing_weight)
    at_target_N1 = weight_NM.new_full(index_N1.shape, plan.target_weight)
    return weight_NM.scatter_add_(-1, index_N1, at_target_N1)


def entropy_of(probs: Tensor) -> Tensor:
    """Return −Σ_x P_x log P_x [...] of probabilities [..., M]."""
    return torch.special.entr(probs).sum(-1)
