"""What losses share whose elementwise passes are kernels, and the pass of one softmax per row."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.fused.base import FusedLoss, Scores
from highrank_plugins.losses.fused.mixtape import FusedMixtape
from highrank_plugins.losses.fused.softmax_pass import OneSoftmax
from highrank_plugins.losses.fused.values import Values


class Weights(NamedTuple):
    """The gradient of a row is total P − on_target 1[x = y] − every_class.

    `total` is the sum of all weights: 1, but for a single class.
    """

    total: float = 1.0
    on_target: float = 1.0
    every_class: float = 0.0


class KernelPasses(OneSoftmax):
    """Mixin before a fused loss: kernels instead of its elementwise passes."""

    factor_in_pass = True

    def softmax_pass(
        self, logits: Tensor, target: Tensor, factor: Tensor | None, bias: Tensor | None = None
    ) -> Scores:
        """As `OneSoftmax.softmax_pass`; the gradient has its factor."""
        plan, rows = self.plan, len(logits)
        values = Values.of(self, logits, bias)
        scores = Scores(
            logits.new_empty(rows, dtype=self.wide),
            logits.new_empty(rows, dtype=self.wide) if plan.smooth else None,
            logits.new_empty(rows, dtype=torch.bool) if plan.accuracy else None,
        )
        self.softmax_kernel(values, target.contiguous(), factor, scores)
        if factor is not None:
            values.pull_into(logits)
        return scores

    def softmax_kernel(
        self, values: Values, target: Tensor, factor: Tensor | None, scores: Scores
    ) -> None:
        """Fill `scores`; with a factor the values become their gradient."""
        raise NotImplementedError

    def weights(self) -> Weights:
        """Of the plan's smoothed loss."""
        on_target, every_class = self.plan.on_target, self.plan.every_class
        return Weights(on_target + self.plan.head.num_classes * every_class, on_target, every_class)


class KernelTree(FusedMixtape):
    """`FusedMixtape` with kernels that leave the gradients of leaves in their order.

    `kernels` is a module with the functions `mix` and `unmix` on tensors.
    """

    kernels: ClassVar[Any]

    def mix(self, leaves: Tensor, gates: Tensor, out: Tensor) -> None:
        self.kernels.mix(leaves, gates, out, self.wide)

    def unmix(self, grad: Tensor, leaves: Tensor, gates: Tensor) -> None:
        self.kernels.unmix(grad, leaves, gates, self.wide)

    def by_slot(self, contexts: Tensor) -> Tensor:
        """Itself: gradients are in the order of leaves."""
        return contexts

    def by_leaf(self, grads: Tensor) -> Tensor:
        """Itself, as `by_slot`."""
        return grads


def kernel_loss(
    table: dict[type[FusedLoss], type[FusedLoss]], fused: type[FusedLoss], kind: str
) -> type[FusedLoss]:
    """The loss in `table` that does the same as `fused` with kernels of a kind.

    Raises:
        ValueError: there is none.
    """
    if fused not in table:
        raise ValueError(
            f"impl: there are no {kind} kernels for {fused.__name__}; impl='fused' "
            "(--head-loss fused) serves it"
        )
    return table[fused]
