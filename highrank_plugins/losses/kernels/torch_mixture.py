"""Make the pass of a Mixture of Softmaxes by torch's operations, in place.

Suffixes of tensors are their shapes, see `heads.base`; N is a block of a chunk here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import chunk_ranges
from highrank_plugins.losses.kernels.base import (
    Kernels,
    MixtureBlock,
    RecomputeLogits,
    copy_unless_same,
)
from highrank_plugins.losses.plan import Scores

# Bytes of the rows that one elementwise pass works on. On a CPU it is what the second-level caches
# of a few cores hold; matrix products want more rows. On a GPU it bounds the temporary memory.
BLOCK_MEMORY = {"cpu": 2**22, "cuda": 2**25}


class TorchMixture(Kernels):
    """Make the pass of a mixture; `TorchKernels` adds the others."""

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        return cache_sized_blocks(rows, floats_per_row, self.plan.features.device)

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        """Return scores and write gradients, see `Kernels.mixture_pass`.

        With r the posterior of the components, the gradient of value x of component k is
        r_k (P_kx − 1[x = y]). Label smoothing has weights w_x = ε_i + α 1[x = y] on −log P_x: with
        u_x = w_x / P_x and c_k = Σ_x P_kx u_x it is π_k P_kx (c_k − u_x), and −π_k c_k for log π_k.
        The z-loss adds 2 ζ lse_k P_kx.
        """
        logits_NKM, log_prior_NK, target_N, scale_N, factor_NK, grad_prior_NK = block
        plan = self.plan
        # the search for underflow would synchronise with a GPU
        if plan.smooth and logits_NKM.device.type != "cpu":
            return log_domain_pass(self, block)
        values_NKM, pullback = self.vjp(logits_NKM)
        index_NK1 = target_N.view(-1, 1, 1).expand(-1, values_NKM.size(1), 1)
        at_target_NK = values_NKM.gather(-1, index_NK1).squeeze(-1)
        log_norm_NK = softmax_in_place(values_NKM)
        joint_NK = log_prior_NK + at_target_NK - log_norm_NK
        log_likelihood_N = joint_NK.logsumexp(-1)
        mixture_NM = correct_N = entropy_N = smooth_sum_N = lost = None
        if plan.smooth or plan.accuracy or plan.entropy:
            mixture_NM = torch.bmm(log_prior_NK.exp().unsqueeze(1), values_NKM).squeeze(1)
            correct_N = mixture_NM.argmax(-1) == target_N if plan.accuracy else None
            entropy_N = entropy_of(mixture_NM) if plan.entropy else None
        if plan.smooth and mixture_NM is not None:
            limits = torch.finfo(mixture_NM.dtype)  # a smaller number is not divided by
            lost = (mixture_NM.amin(-1) < limits.tiny / limits.eps).nonzero().squeeze(-1)
            mixture_NM[lost] = 1.0
            smooth_sum_N = -mixture_NM.log().sum(-1)
        if scale_N is not None:
            scale_N1 = scale_N.unsqueeze(-1)
            probs_NKM = values_NKM.clone() if plan.z_loss else values_NKM
            if mixture_NM is None or not plan.smooth:
                write_posterior(joint_NK, log_likelihood_N, scale_N1, block)
                values_NKM.scatter_add_(-1, index_NK1, values_NKM.new_full(index_NK1.shape, -1.0))
            else:
                ratio_NM = _class_weights(self, mixture_NM, target_N).div_(mixture_NM)
                share_NK1 = torch.bmm(values_NKM, ratio_NM.unsqueeze(-1))
                torch.mul(log_prior_NK.exp(), scale_N1, out=factor_NK)
                torch.mul(factor_NK, share_NK1.squeeze(-1), out=grad_prior_NK).neg_()
                values_NKM.mul_(share_NK1 - ratio_NM.unsqueeze(1))
            if self.applies_factor:
                values_NKM.mul_(factor_NK.unsqueeze(-1))
            if plan.z_loss:
                weight_NK = 2 * plan.z_loss * scale_N1 * log_norm_NK
                values_NKM.addcmul_(probs_NKM, weight_NK.unsqueeze(-1))
            if lost is not None:
                values_NKM[lost] = 0.0
            copy_unless_same(pullback(values_NKM), logits_NKM)
        square_norm_N = log_norm_NK.square().sum(-1) if plan.z_loss else None
        scores = Scores(-log_likelihood_N, smooth_sum_N, correct_N, entropy_N, square_norm_N)
        if lost is not None:
            recompute_in_log_domain(self, lost, scores, block, recompute_logits)
        return scores


def cache_sized_blocks(
    rows: int, floats_per_row: int, device: torch.device
) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows for torch's passes, of `BLOCK_MEMORY` each."""
    memory = BLOCK_MEMORY.get(device.type, BLOCK_MEMORY["cuda"])
    return chunk_ranges(0, rows, max(1, memory // (4 * max(1, floats_per_row))))


def softmax_in_place(values: Tensor) -> Tensor:
    """Turn values [..., M] into their softmax, and return their log-sum-exp [...]."""
    top = values.amax(-1)
    torch.softmax(values, -1, out=values)
    return top - values.amax(-1).log()  # the largest probability is e^0 over the sum


def entropy_of(probs: Tensor) -> Tensor:
    """Return −Σ_x P_x log P_x [...] of probabilities [..., M]."""
    return torch.special.entr(probs).sum(-1)


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
        weight_N1M = _class_weights(kernels, log_mixture_NM, target_N).unsqueeze(1)
        posterior_NKM = log_joint_NKM.sub_(log_mixture_NM.unsqueeze(1)).exp_().mul_(weight_N1M)
        share_NK = posterior_NKM.sum(-1)
        factor_NK.copy_(scale_N.unsqueeze(-1).expand_as(factor_NK))
        torch.mul(factor_NK, share_NK, out=grad_prior_NK).neg_()
        if log_norm_NK is not None:
            share_NK = share_NK + 2 * kernels.plan.z_loss * log_norm_NK
        torch.mul(log_parts_NKM.exp_(), share_NK.unsqueeze(-1), out=values_NKM).sub_(posterior_NKM)
        write_gradient(kernels, values_NKM, pullback, factor_NK, logits_NKM)
    square_norm_N = None if log_norm_NK is None else log_norm_NK.square().sum(-1)
    return Scores(nll_N, smooth_sum_N, correct_N, entropy_N, square_norm_N)


def _class_weights(kernels: Kernels, like_NM: Tensor, target_N: Tensor) -> Tensor:
    """Return the weights w [N, M] of −log P_x: ε_i + α 1[x = y]."""
    index_N1 = target_N.unsqueeze(-1)
    weight_NM = torch.full_like(like_NM, kernels.plan.smoothing_weight)
    at_target_N1 = weight_NM.new_full(index_N1.shape, kernels.plan.target_weight)
    return weight_NM.scatter_add_(-1, index_N1, at_target_N1)


def write_posterior(
    joint_NK: Tensor, log_likelihood_N: Tensor, scale_N1: Tensor, block: MixtureBlock
) -> None:
    """Write the scaled posterior of the components, and the gradient of log π without smoothing."""
    # −∞, of a token that no component explains, must not be subtracted
    shift_N = log_likelihood_N.masked_fill(log_likelihood_N == -torch.inf, 0)
    torch.mul((joint_NK - shift_N.unsqueeze(-1)).exp_(), scale_N1, out=block.factor_NK)
    torch.neg(block.factor_NK, out=block.grad_prior_NK)


def write_gradient(
    kernels: Kernels,
    grad: Tensor,
    pullback: Callable[[Tensor], Tensor],
    factor: Tensor,
    logits: Tensor,
) -> None:
    """Write the gradient of the logits into them, given the gradient [..., M] of f."""
    if kernels.applies_factor:
        grad.mul_(factor.unsqueeze(-1))
    copy_unless_same(pullback(grad), logits)
