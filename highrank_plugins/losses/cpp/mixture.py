"""Mixture of Softmaxes, with compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.cpp import launch
from highrank_plugins.losses.cpp.passes import CppPasses
from highrank_plugins.losses.fused import FusedMixture
from highrank_plugins.losses.fused.base import Scores
from highrank_plugins.losses.fused.mixture import Again
from highrank_plugins.losses.fused.values import Values


class CppMixture(CppPasses, FusedMixture):
    """`FusedMixture` with a kernel, which sees all components of a token at once."""

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
        """As `FusedMixture.mixture_pass`; the gradient has its factor."""
        plan = self.plan
        values = Values.of(self, logits, self.bias)
        nll = log_prior.new_empty(len(target))
        smooth_sum = torch.empty_like(nll) if plan.smooth else None
        hits = torch.empty_like(target, dtype=torch.bool) if plan.accuracy else None
        underflow = torch.zeros_like(target, dtype=torch.bool)
        launch.mixture(
            values.tensor,
            target.contiguous(),
            values.bent_line,
            self.weights(),
            log_prior,
            bias=values.bias,
            scale=scale,
            nll=nll,
            smooth_sum=smooth_sum,
            hits=hits,
            grad_prior=grad_prior,
            underflow=underflow,
            columns=self.columns,
        )
        if scale is not None:
            values.pull_into(logits)
        scores = Scores(nll, smooth_sum, hits)
        lost = underflow.nonzero().squeeze(-1)
        self.redo(lost, scores, logits, log_prior, target, scale, factor, grad_prior, again)
        if self.columns is not None and len(lost):
            self.columns[0].add_(logits[lost].sum((0, 1)))
        return scores
