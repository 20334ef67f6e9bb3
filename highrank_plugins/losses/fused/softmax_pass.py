"""The elementwise pass of one softmax per row."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.fused.base import FusedLoss, Scores


def softmax_in_place(values: Tensor) -> Tensor:
    """values [..., M] become their softmax; returns their log-sum-exp [...]."""
    top = values.amax(-1)
    torch.softmax(values, -1, out=values)
    return top - values.amax(-1).log()  # the largest probability is e^0 over the sum


class OneSoftmax(FusedLoss):
    """A fused loss with one softmax per token."""

    def softmax_pass(
        self, logits: Tensor, target: Tensor, factor: Tensor | None, bias: Tensor | None = None
    ) -> Scores:
        """Scores of log_softmax(f(z + bias)) for logits z [n, M], which become their gradient.

        The gradient is divided by `factor`, unless `factor_first`, and lacks the constant −ε_i if
        `folds_constant`.

        Args:
            factor: [n], the tokens' scale; None: scores only, and the logits are lost.
            bias: [M], where the product has not added it.
        """
        plan = self.plan
        index = target.unsqueeze(-1)
        if bias is not None:
            logits.add_(bias)
        values, pullback = self.evaluate(logits)
        hits = values.argmax(-1) == target if plan.accuracy else None
        at_target = values.gather(-1, index).squeeze(-1)
        mean = values.mean(-1) if plan.smooth else None
        log_norm = softmax_in_place(values)
        smooth_sum = None if mean is None else values.size(-1) * (log_norm - mean)
        if factor is not None:
            # Σ_x of the weights is 1, but for a single class
            total = plan.on_target + values.size(-1) * plan.every_class
            if total != 1 and plan.smooth:
                values.mul_(total)
            values.scatter_add_(-1, index, values.new_full(index.shape, -plan.on_target))
            if plan.smooth and not self.folds_constant:
                values.sub_(plan.every_class)
            if self.factor_first:
                values.mul_(factor.unsqueeze(-1))
            gradient = pullback(values)
            if gradient.data_ptr() != logits.data_ptr():
                logits.copy_(gradient)
        return Scores(log_norm - at_target, smooth_sum, hits)
