"""Mixture of Softmaxes, with kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.fused import FusedMixture
from highrank_plugins.losses.fused.base import Scores
from highrank_plugins.losses.fused.mixture import Again
from highrank_plugins.losses.fused.values import Values
from highrank_plugins.losses.triton import launch
from highrank_plugins.losses.triton.passes import TritonPasses


class TritonMixture(TritonPasses, FusedMixture):
    """`FusedMixture` with kernels.

    Log-sum-exps of all rows; the posterior of the components, [n, K], by torch; gradients. What
    needs the mixture of every class, smoothing and hits, is a kernel of its own, and never stored.
    """

    def mixture_pass(
        self,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        scale: Tensor | None,
        factor: Tensor,
        grad_prior: Tensor,
        again: Again,
    ) -> Scores:
        plan = self.plan
        target, log_prior = target.contiguous(), log_prior.contiguous()
        values = Values.of(self, logits)
        rows = values.tensor.flatten(0, 1)
        nll, log_norm = torch.empty_like(log_prior), torch.empty_like(log_prior)
        launch.softmax(rows, target, values.bent_line, nll, log_norm=log_norm)
        joint = log_prior - nll
        log_likelihood = joint.logsumexp(-1)
        smooth_sum = torch.empty_like(log_likelihood) if plan.smooth else None
        hits = torch.empty_like(target, dtype=torch.bool) if plan.accuracy else None
        smoothed = scale is not None and plan.smooth
        if plan.smooth or plan.accuracy:
            launch.mixture(
                values.tensor,
                target,
                values.bent_line,
                log_norm,
                log_prior,
                factor=scale if smoothed else None,
                weights=self.weights(),
                smooth_sum=smooth_sum,
                share=grad_prior if smoothed else None,
                hits=hits,
            )
        if scale is not None:
            if smoothed:
                grad_prior.mul_(scale.unsqueeze(-1)).neg_()
            else:
                torch.mul(
                    (joint - log_likelihood.unsqueeze(-1)).exp_(), scale.unsqueeze(-1), out=factor
                )
                torch.neg(factor, out=grad_prior)
                launch.gradient(rows, target, values.bent_line, log_norm, factor)
            values.pull_into(logits)
        return Scores(-log_likelihood, smooth_sum, hits)
