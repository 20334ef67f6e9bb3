"""Compute the losses of one softmax over f(W h + b), and of a Mixture of Softmaxes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import join_chunks
from highrank_plugins.losses.fused import FusedLoss, LossChunk
from highrank_plugins.losses.plan import AnyHead, MixtureBlock, Named, Scores, SoftmaxBlock


class FusedLogits(FusedLoss):
    """Compute log_softmax(f(W h + b)); `given["contexts"]` is h [N, D].

    Three matrix products and one pass. What is constant over classes (the token's factor) or over
    tokens (the smoothing's −ε_i) is applied to the narrow sides of the products.
    """

    def prepare(self, tensors: Named) -> None:
        plan, kernels = self.plan, self.kernels
        self.class_weights = plan.class_weights
        identity = plan.head.pointwise.is_identity
        # whether the −ε_i in the gradient of every logit is left to the matrix products
        self.folds_smoothing = plan.smooth and identity and not kernels.applies_factor
        if self.folds_smoothing:
            self.class_weights = self.class_weights._replace(smoothing=0.0)
            self.weight_sum_D = self.weight.sum(0, dtype=kernels.wide)
            self.context_sum_D = torch.zeros_like(self.weight_sum_D)
            self.scale_sum = self.weight_sum_D.new_zeros(())

    @classmethod
    def floats_per_token(cls, head: AnyHead) -> int:
        return head.num_classes

    def chunk(self, chunk: LossChunk) -> Scores:
        contexts_ND, scale_N = chunk.given["contexts"].to(self.compute), chunk.scale_N
        logits_NM = self.buffer("logits", contexts_ND.size(0), self.weight.size(0))
        self.product(contexts_ND, self.weight, logits_NM, self.bias_of_product)
        block = SoftmaxBlock(logits_NM, chunk.target_N, scale_N, self.class_weights)
        passes = (
            self.kernels.softmax_pass(block.rows(a, b), self.bias_of_pass)
            for a, b in self.kernels.row_blocks(*logits_NM.shape)
        )
        scores = Scores(*join_chunks(len(logits_NM), passes))
        if scale_N is None:
            return scores
        grad_ND = chunk.grads["contexts"]
        self.kernels.add_bias_gradient(logits_NM, scale_N)
        self.backward_products(
            self.weight_sum, logits_NM, contexts_ND, self.weight, scale_N, grad_ND
        )
        if self.folds_smoothing:
            share_N = scale_N * self.plan.smoothing_weight
            constant_ND = torch.outer(share_N, self.weight_sum_D)
            grad_ND.copy_((grad_ND - constant_ND).to(self.compute))
            self.context_sum_D.add_(share_N @ contexts_ND.to(share_N.dtype))
            self.scale_sum.add_(share_N.sum())
        return scores

    def finish(self) -> None:
        super().finish()
        if self.folds_smoothing:
            for name, constant in (("weight", self.context_sum_D), ("bias", self.scale_sum)):
                if name in self.sums:
                    self.sums[name].sub_(constant)


class FusedMixture(FusedLoss):
    """Compute lse_k [log π_k + log_softmax(f(W h_k + b))].

    `given["contexts"]` is h [N, K, D], `given["log_prior"]` log π [N, K], normalised. Gradients:
    see `Kernels.mixture_pass`. The posterior of the components, constant along a row of
    logits, is applied in the products where the kernels have not applied it.
    """

    holds_components = True
    applies_function_to_components = True

    @classmethod
    def floats_per_token(cls, head: AnyHead) -> int:
        return head.components * head.num_classes

    def chunk(self, chunk: LossChunk) -> Scores:
        contexts_NKD = chunk.given["contexts"].to(self.compute)
        log_prior_NK = chunk.given["log_prior"].to(self.kernels.wide).contiguous()
        rows = contexts_NKD.flatten(0, 1)
        grad = self.buffer("logits", len(rows), self.weight.size(0))
        self.product(rows, self.weight, grad, self.bias_of_product)
        block = MixtureBlock(
            logits_NKM=grad.unflatten(0, log_prior_NK.shape),
            log_prior_NK=log_prior_NK,
            target_N=chunk.target_N,
            scale_N=chunk.scale_N,
            factor_NK=torch.empty_like(log_prior_NK),
            grad_prior_NK=torch.empty_like(log_prior_NK),
        )

        def scores_of(a: int, b: int) -> Scores:
            part, logits_of = block.tokens(slice(a, b)), partial(self._logits, contexts_NKD[a:b])
            return self.kernels.mixture_pass(part, self.bias_of_pass, logits_of)

        floats = self.floats_per_token(self.plan.head)
        passes = (scores_of(a, b) for a, b in self.kernels.row_blocks(len(contexts_NKD), floats))
        scores = Scores(*join_chunks(len(contexts_NKD), passes))
        if chunk.scale_N is None:
            return scores
        factor = block.factor_NK.view(-1)
        self.kernels.add_bias_gradient(grad, factor)
        out = chunk.grads["contexts"].view(rows.shape)
        self.backward_products(self.weight_sum, grad, rows, self.weight, factor, out)
        chunk.grads["log_prior"].copy_(block.grad_prior_NK)
        return scores

    def _logits(self, contexts_NKD: Tensor, which: Tensor) -> Tensor:
        """Return the logits [n, K, M] of some tokens, in memory of their own."""
        rows = contexts_NKD[which].flatten(0, 1)
        dtype = self.kernels.chunk_dtype
        logits = torch.empty(len(rows), len(self.weight), dtype=dtype, device=rows.device)
        self.product(rows, self.weight, logits, self.bias)
        return logits.unflatten(0, (-1, contexts_NKD.size(1)))
