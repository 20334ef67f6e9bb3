"""Mixture of Softmaxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.fused.base import FusedLoss, Scores
from highrank_plugins.losses.fused.scores import gather_scores
from highrank_plugins.losses.fused.softmax_pass import softmax_in_place

# indices of tokens of a block → their logits [n, K, M]
Again = Callable[[Tensor], Tensor]


class FusedMixture(FusedLoss):
    """Loss of lse_k [log π_k + log_softmax(f(W h_k + b))].

    `local["contexts"]` is h [n, K, D], `local["log_prior"]` log π [n, K], normalised. With r the
    posterior of the components, the gradient of value x of component k is r_k (P_kx − 1[x = y]);
    r_k waits for the products. Label smoothing has weights w_x = ε_i + α 1[x = y] on −log P_x: with
    u_x = w_x / P_x and c_k = Σ_x P_kx u_x it is π_k P_kx (c_k − u_x), and −π_k c_k for log π_k.
    """

    @classmethod
    def floats_per_token(cls, head: Any) -> int:
        return head.components * head.num_classes

    def chunk(
        self, local: dict[str, Tensor], target: Tensor, scale: Tensor | None, draws: Any
    ) -> tuple[Scores, dict[str, Tensor]]:
        contexts = local["contexts"].to(self.compute)
        log_prior = local["log_prior"].to(self.wide).contiguous()
        tokens, components, size = contexts.shape
        rows = contexts.reshape(tokens * components, size)
        grad = self.buffer("logits", tokens * components, self.weight.size(0))
        logits = grad.unflatten(0, (tokens, components))
        self.product(rows, self.weight, grad, None if self.bias_in_pass else self.bias)
        grad_prior = torch.empty_like(log_prior)
        factor = torch.empty_like(log_prior)

        def block(a: int, b: int) -> Scores:
            return self.mixture_pass(
                logits[a:b], log_prior[a:b], target[a:b],
                None if scale is None else scale[a:b], factor[a:b], grad_prior[a:b],
                lambda which: self._logits(contexts[a:b][which]),
            )  # fmt: skip

        scores = gather_scores(
            block(a, b) for a, b in self.row_blocks(tokens, self.floats_per_token(self.plan.head))
        )
        if scale is None:
            return scores, {}
        late = None if self.factor_first else factor.view(-1)
        self.add_columns("bias", grad, late)
        grad = grad.to(self.compute)
        result = self.backward_products("weight", grad, rows, self.weight, late).view_as(contexts)
        return scores, {"contexts": result, "log_prior": grad_prior}

    def _logits(self, contexts: Tensor) -> Tensor:
        """[n, K, M] of contexts [n, K, D], in memory of their own."""
        rows = contexts.flatten(0, 1)
        logits = torch.empty(len(rows), len(self.weight), dtype=self.stored, device=rows.device)
        self.product(rows, self.weight, logits, self.bias)
        return logits.unflatten(0, contexts.shape[:2])

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
        """Scores of a block; logits [n, K, M], factor and grad_prior [n, K] become results.

        `again` makes the logits of some tokens anew, for the rare ones whose probabilities
        underflow.
        """
        if self.plan.smooth and logits.is_cuda:  # looking for underflow would wait for the device
            return self._log_domain_pass(logits, log_prior, target, scale, factor, grad_prior)
        values, pullback = self.evaluate(logits)
        index = target.view(-1, 1, 1).expand(-1, values.size(1), 1)
        at_target = values.gather(-1, index).squeeze(-1)
        log_norm = softmax_in_place(values)
        joint = log_prior + at_target - log_norm
        log_likelihood = joint.logsumexp(-1)
        mixture = None
        if self.plan.smooth or self.plan.accuracy:
            mixture = torch.bmm(log_prior.exp().unsqueeze(1), values).squeeze(1)
        hits = mixture.argmax(-1) == target if self.plan.accuracy and mixture is not None else None
        smooth_sum = lost = None
        if self.plan.smooth and mixture is not None:
            lost = _underflows(mixture).nonzero().squeeze(-1)
            mixture[lost] = 1.0
            smooth_sum = -mixture.log().sum(-1)
        if scale is not None:
            if mixture is None or not self.plan.smooth:
                # −∞, a token that nothing explains, is no shift
                shift = log_likelihood.masked_fill(log_likelihood == -torch.inf, 0).unsqueeze(-1)
                torch.mul((joint - shift).exp_(), scale.unsqueeze(-1), out=factor)
                torch.neg(factor, out=grad_prior)
                values.scatter_add_(-1, index, values.new_full(index.shape, -1.0))
            else:
                weight = torch.full_like(mixture, self.plan.every_class)
                weight.scatter_add_(
                    -1, target.unsqueeze(-1), weight.new_full((len(target), 1), self.plan.on_target)
                )
                ratio = weight.div_(mixture)
                share = torch.bmm(values, ratio.unsqueeze(-1))  # [n, K, 1]
                torch.mul(log_prior.exp(), scale.unsqueeze(-1), out=factor)
                torch.mul(factor, share.squeeze(-1), out=grad_prior).neg_()
                values.mul_(share - ratio.unsqueeze(1))
                values[lost] = 0.0
            self._pull(values, pullback, factor, logits)
        scores = Scores(-log_likelihood, smooth_sum, hits)
        if lost is not None:
            self.redo(lost, scores, logits, log_prior, target, scale, factor, grad_prior, again)
        return scores

    def redo(
        self,
        which: Tensor,
        scores: Scores,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        scale: Tensor | None,
        factor: Tensor,
        grad_prior: Tensor,
        again: Again,
    ) -> None:
        """Scores and results of the tokens `which` of a block once more, by logarithms.

        Until here their logits have had the gradient 0.
        """
        per_token = self.floats_per_token(self.plan.head)
        # this is torch's work, also where kernels do the rest
        blocks = FusedLoss.row_blocks(self, len(which), per_token)
        for a, b in blocks if len(which) else ():
            part = which[a:b]
            own, own_factor, own_grad = again(part), factor[part], grad_prior[part]
            found = self._log_domain_pass(
                own, log_prior[part], target[part],
                None if scale is None else scale[part], own_factor, own_grad,
            )  # fmt: skip
            for whole, mended in zip(scores, found, strict=True):
                if whole is not None and mended is not None:
                    whole[part] = mended
            if scale is not None:
                logits[part], factor[part], grad_prior[part] = own, own_factor, own_grad

    def _log_domain_pass(
        self,
        logits: Tensor,
        log_prior: Tensor,
        target: Tensor,
        scale: Tensor | None,
        factor: Tensor,
        grad_prior: Tensor,
    ) -> Scores:
        """Label smoothing where probabilities underflow: q_kx = π_k P_kx / P_x by logarithms."""
        values, pullback = self.evaluate(logits)
        log_parts = values.log_softmax(-1)
        log_joint = log_prior.unsqueeze(-1) + log_parts
        log_mixture = log_joint.logsumexp(1)
        index = target.unsqueeze(-1)
        nll = -log_mixture.gather(-1, index).squeeze(-1)
        smooth_sum = -log_mixture.sum(-1)
        hits = log_mixture.argmax(-1) == target if self.plan.accuracy else None
        if scale is not None:
            weight = torch.full_like(log_mixture, self.plan.every_class)
            weight.scatter_add_(-1, index, weight.new_full(index.shape, self.plan.on_target))
            posterior = log_joint.sub_(log_mixture.unsqueeze(1)).exp_().mul_(weight.unsqueeze(1))
            share = posterior.sum(-1)
            factor.copy_(scale.unsqueeze(-1).expand_as(factor))
            torch.mul(factor, share, out=grad_prior).neg_()
            torch.mul(log_parts.exp_(), share.unsqueeze(-1), out=values).sub_(posterior)
            self._pull(values, pullback, factor, logits)
        return Scores(nll, smooth_sum, hits)

    def _pull(
        self, values: Tensor, pullback: Callable[[Tensor], Tensor], factor: Tensor, logits: Tensor
    ) -> None:
        if self.factor_first:
            values.mul_(factor.unsqueeze(-1))
        gradient = pullback(values)
        if gradient.data_ptr() != logits.data_ptr():
            logits.copy_(gradient)


def _underflows(mixture: Tensor) -> Tensor:
    """Whether a probability [n, M] is too small to divide by: [n] bool."""
    limits = torch.finfo(mixture.dtype)
    return mixture.amin(-1) < limits.tiny / limits.eps
