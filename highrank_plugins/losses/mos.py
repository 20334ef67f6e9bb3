"""Compute the loss of a Mixture of Softmaxes."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import concatenate
from highrank_plugins.losses.fused import FusedLoss, LossChunk
from highrank_plugins.losses.plan import AnyHead, MixtureBlock, Scores


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

        def scores_of(part: slice) -> Scores:
            return self.kernels.mixture_pass(
                block.tokens(part),
                self.bias_of_pass,
                lambda which: self._logits(contexts_NKD[part][which]),
            )

        floats = self.floats_per_token(self.plan.head)
        blocks = self.kernels.row_blocks(len(contexts_NKD), floats)
        scores = concatenate(scores_of(slice(a, b)) for a, b in blocks)
        if chunk.scale_N is None:
            return scores
        factor = block.factor_NK.view(-1)
        self.kernels.add_bias_gradient(grad, factor)
        out = chunk.grads["contexts"].view(rows.shape)
        self.backward_products(self.weight_sum, grad, rows, self.weight, factor, out)
        chunk.grads["log_prior"].copy_(block.grad_prior_NK)
        return scores

    def _logits(self, contexts_NKD: Tensor) -> Tensor:
        """Return the logits [N, K, M], in memory of their own."""
        rows = contexts_NKD.flatten(0, 1)
        dtype = self.kernels.chunk_dtype
        logits = torch.empty(len(rows), len(self.weight), dtype=dtype, device=rows.device)
        self.product(rows, self.weight, logits, self.bias)
        return logits.unflatten(0, contexts_NKD.shape[:2])
