"""What losses share whose elementwise passes are kernels, and the pass of one softmax per row."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import FusedLoss, Scores
from .mixtape import FusedMixtape
from .softmax_pass import OneSoftmax
from .values import Values


class KernelPasses(OneSoftmax):
    """Mixin before a fused loss: kernels instead of its elementwise passes.

    `kernels` is a module of functions on tensors: `mix` and `unmix`, as `FusedMixtape` has them.
    """

    kernels: ClassVar[Any]
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

    @property
    def total(self) -> float:
        """Σ_x of the weights of the plan's smoothed loss: 1, but for a single class."""
        return self.plan.on_target + self.plan.head.num_classes * self.plan.every_class


class KernelTree(FusedMixtape):
    """`FusedMixtape` with kernels that leave the gradients of leaves in their order."""

    kernels: ClassVar[Any]

    def mix(self, leaves: Tensor, gates: Tensor, out: Tensor) -> None:
        self.kernels.mix(leaves, gates, out, self.wide)

    def unmix(self, grad: Tensor, leaves: Tensor, gates: Tensor) -> None:
        self.kernels.unmix(grad, leaves, gates, self.wide)

    def by_slot(self, contexts: Tensor) -> None:
        """Nothing: gradients are in the order of leaves."""

    def by_leaf(self, grads: Tensor) -> None:
        """Nothing, as `by_slot`."""


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
