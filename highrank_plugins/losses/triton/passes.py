"""What the losses with kernels share, and the pass of one softmax per row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fused.base import Scores
from ..fused.softmax_pass import OneSoftmax
from . import launch
from .values import Values


class TritonPasses(OneSoftmax):
    """Mixin before a fused loss: kernels instead of its elementwise passes."""

    kernels = True

    def softmax_pass(
        self, logits: Tensor, target: Tensor, factor: Tensor | None, bias: Tensor | None = None
    ) -> Scores:
        plan, rows = self.plan, len(logits)
        values = Values.of(self, logits, bias)
        scores = Scores(
            logits.new_empty(rows, dtype=self.wide),
            logits.new_empty(rows, dtype=self.wide) if plan.smooth else None,
            logits.new_empty(rows, dtype=torch.bool) if plan.accuracy else None,
        )
        launch.softmax(
            values.tensor,
            target.contiguous(),
            values.bent_line,
            scores.nll,
            bias=values.bias,
            factor=factor,
            weights=self.weights(),
            smooth_sum=scores.smooth_sum,
            hits=scores.hits,
        )
        if factor is not None:
            values.pull_into(logits)
        return scores

    def weights(self) -> launch.Weights:
        """Of the plan's smoothed loss."""
        on_target, every_class = self.plan.on_target, self.plan.every_class
        total = on_target + self.plan.head.num_classes * every_class
        return launch.Weights(total, on_target, every_class)
