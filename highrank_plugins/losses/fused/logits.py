"""Heads with one softmax over f(W h + b): softmax, and Mixture of Contexts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.fused.base import Scores
from highrank_plugins.losses.fused.scores import gather_scores
from highrank_plugins.losses.fused.softmax_pass import OneSoftmax
from highrank_plugins.losses.plan import ChunkedHead, LossPlan


class FusedLogits(OneSoftmax):
    """Loss of log_softmax(f(W h + b)); `local["contexts"]` is h [n, D].

    Three matrix products and one pass. What is constant over classes (the token's factor) or over
    tokens (the smoothing's −ε_i) is applied to the narrow sides of the products.
    """

    def __init__(
        self,
        plan: LossPlan,
        tensors: dict[str, Tensor],
        sums: dict[str, Tensor],
        compute: torch.dtype,
    ) -> None:
        super().__init__(plan, tensors, sums, compute)
        identity = plan.head.pointwise.is_identity
        self.folds_constant = plan.smooth and identity and not self.factor_first
        if self.folds_constant:
            self.weight_sum = self.weight.sum(0, dtype=self.wide)
            self.context_sum = torch.zeros_like(self.weight_sum)
            self.scale_sum = self.weight_sum.new_zeros(())

    @classmethod
    def floats_per_token(cls, head: ChunkedHead) -> int:
        return head.num_classes

    def chunk(
        self, local: dict[str, Tensor], target: Tensor, scale: Tensor | None, draws: Any
    ) -> tuple[Scores, dict[str, Tensor]]:
        contexts = local["contexts"].to(self.compute)
        logits = self.buffer("logits", contexts.size(0), self.weight.size(0))
        self.product(contexts, self.weight, logits, None if self.bias_in_pass else self.bias)
        late_bias = self.bias if self.bias_in_pass else None
        scores = gather_scores(
            self.softmax_pass(
                logits[a:b], target[a:b], None if scale is None else scale[a:b], late_bias
            )
            for a, b in self.row_blocks(logits.size(0), logits.size(1))
        )
        if scale is None:
            return scores, {}
        return scores, {"contexts": self._products(logits, contexts, scale)}

    def _products(self, grad: Tensor, contexts: Tensor, scale: Tensor) -> Tensor:
        factor = None if self.factor_first else scale
        self.add_columns("bias", grad, factor)
        grad = grad.to(self.compute)
        result = self.backward_products("weight", grad, contexts, self.weight, factor)
        if self.folds_constant:
            share = scale * self.plan.every_class
            result = (result - torch.outer(share, self.weight_sum)).to(result.dtype)
            self.context_sum.add_(share @ contexts.to(share.dtype))
            self.scale_sum.add_(share.sum())
        return result

    def finish(self) -> None:
        if self.folds_constant:
            for name, constant in (("weight", self.context_sum), ("bias", self.scale_sum)):
                if name in self.sums:
                    self.sums[name].sub_(constant)
