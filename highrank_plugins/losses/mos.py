"""Compute the loss of a Mixture of Softmaxes."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.kernels.torch import MixtureBlock
from highrank_plugins.losses.plan import Scores, concatenate


class FusedMixture(FusedLoss):
    """Compute lse_k [log π_k + log_softmax(f(W h_k + b))].

    `local["contexts"]` is h [N, K, D], `local["log_prior"]` log π [N, K], normalised. Gradients:
    see `Kernels.mixture_pass`. The posterior of the components, constant along a row of
    logits, is applied in the products where the kernels have not applied it.
    """

    overwrites: ClassVar[tuple[str, ...]] = ("weight",)
    holds_components = True
    applies_function_to_components = True

    @classmethod
    def floats_per_token(cls, head: Any) -> int:
        return head.components * head.num_classes

    def chunk(
        self,
        local: dict[str, Tensor],
        target_N: Tensor,
        scale_N: Tensor | None,
        random_state: Any,
        out: dict[str, Tensor],
    ) -> Scores:
        contexts_NKD = local["contexts"].to(self.compute)
        log_prior_NK = local["log_prior"].to(self.kernels.wide).contiguous()
        tokens, components, size = contexts_NKD.shape
        rows = contexts_NKD.reshape(tokens * components, size)
        grad = self.buffer("logits", tokens * components, self.weight.size(0))
        self.product(rows, self.weight, grad, self.bias_of_product)
        block = MixtureBlock(
            logits_NKM=grad.unflatten(0, (tokens, components)),
            log_prior_NK=log_prior_NK,
            target_N=target_N,
            scale_N=scale_N,
            factor_NK=torch.empty_like(log_prior_NK),
            grad_prior_NK=torch.empty_like(log_prior_NK),
        )

        def scores_of(part: slice) -> Scores:
            return self.kernels.mixture_pass(
                block.tokens(part),
                self.bias_of_pass,
                lambda which: self._logits(contexts_NKD[part][which]),
            )

        blocks = self.kernels.row_blocks(tokens, self.floats_per_token(self.plan.head))
        scores = Scores(*concatenate(scores_of(slice(a, b)) for a, b in blocks))
        if scale_N is None:
            return scores
        factor = None if self.kernels.applies_factor else block.factor_NK.view(-1)
        self.kernels.add_bias_gradient(grad, factor)
        grad_rows = out["contexts"].view(rows.shape)
        self.backward_products("weight", grad, rows, self.weight, factor, grad_rows)
        out["log_prior"].copy_(block.grad_prior_NK)
        return scores

    def _logits(self, contexts_NKD: Tensor) -> Tensor:
        """Return the logits [N, K, M], in memory of their own."""
        rows = contexts_NKD.flatten(0, 1)
        dtype = self.kernels.chunk_dtype
        logits = torch.empty(len(rows), len(self.weight), dtype=dtype, device=rows.device)
        self.product(rows, self.weight, logits, self.bias)
        return logits.unflatten(0, contexts_NKD.shape[:2])
