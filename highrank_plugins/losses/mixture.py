"""Label-smoothed loss of a mixture of softmaxes, with its gradient written out.

Plain autograd takes four exponentials of every logit; here it is one. With weights w_x on
−log P_x (the upstream gradients: smoothing everywhere, nll at the target), u_x = w_x / P_x and
c_k = Σ_x P_kx u_x, the gradient of the loss with respect to value x of component k is
π_k P_kx (c_k − u_x), and with respect to log π_k it is −π_k c_k.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def smoothed_mixture_nll(
    log_prior: Tensor, values: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """−log P(target) [n] and Σ_x −log P(x) [n] of log P(x) = lse_k [log π_k + log_softmax(v_k)_x].

    Args:
        log_prior: log π [n, K], normalised.
        values: v [n, K, M], float32 or float64.
        target: int64 [n].
    """
    if values.is_cuda:  # looking for underflow would wait for the device
        return _in_log_domain(log_prior, values, target)
    components = values.detach().softmax(-1)
    with torch.autocast(values.device.type, enabled=False):  # the product stays in float32
        mixture = (log_prior.detach().exp().unsqueeze(1) @ components).squeeze(1)
    if (
        mixture.numel()
        and mixture.min() < torch.finfo(mixture.dtype).tiny / torch.finfo(mixture.dtype).eps
    ):
        return _in_log_domain(log_prior, values, target)  # some class is below the smallest number
    return _SmoothedMixture.apply(log_prior, values, target, components, mixture)


def _in_log_domain(log_prior: Tensor, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = (log_prior.unsqueeze(-1) + values.log_softmax(-1)).logsumexp(1)
    return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1), -log_probs.sum(-1)


class _SmoothedMixture(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_prior: Tensor,
        values: Tensor,
        target: Tensor,
        components: Tensor,
        mixture: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(log_prior, target, components, mixture)
        log_probs = mixture.log()
        return -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1), -log_probs.sum(-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_nll: Tensor, grad_smooth: Tensor) -> tuple[Tensor | None, ...]:
        log_prior, target, components, mixture = ctx.saved_tensors
        weight = grad_smooth.unsqueeze(-1).expand_as(mixture).clone()
        weight.scatter_add_(-1, target.unsqueeze(-1), grad_nll.unsqueeze(-1))
        ratio = weight.div_(mixture)
        prior = log_prior.exp()
        share = prior * (components @ ratio.unsqueeze(-1)).squeeze(-1)
        grad_values = torch.addcmul(
            share.unsqueeze(-1), prior.unsqueeze(-1), ratio.unsqueeze(1), value=-1
        ).mul_(components)
        return -share, grad_values, None, None, None
