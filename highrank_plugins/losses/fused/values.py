"""What a kernel works on: logits where it knows the pointwise function, else what torch made."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from highrank_plugins.losses.fused.base import FusedLoss

IDENTITY = (0.0, 1.0)


class Values(NamedTuple):
    """A tensor that a kernel reads and turns into its gradient, and what the kernel adds to it."""

    tensor: Tensor
    bias: Tensor | None
    bent_line: tuple[float, float]  # c and k of the f that it applies
    pullback: Callable[[Tensor], Tensor] | None  # from that gradient to the logits'; None: the same

    @classmethod
    def of(cls, loss: FusedLoss, logits: Tensor, bias: Tensor | None = None) -> Values:
        """The logits themselves or, with a function that no kernel knows, f of them, widened."""
        bent_line = loss.plan.head.pointwise.bent_line
        if bent_line is not None:
            return cls(logits, bias, bent_line, None)
        wide = logits.to(loss.wide)
        if bias is not None:
            wide.add_(bias)
        values, pullback = loss.evaluate(wide)
        return cls(values.contiguous(), None, IDENTITY, pullback)

    def pull_into(self, logits: Tensor) -> None:
        """Once `tensor` is its gradient: that of the logits takes their place."""
        if self.pullback is None:
            return
        gradient = self.pullback(self.tensor)
        if gradient.data_ptr() != logits.data_ptr():
            logits.copy_(gradient)
