"""What kernels in C++ and Triton share: what they read, and where scores go."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.kernels.base import Kernels, Scores, copy_unless_same

IDENTITY = (0.0, 1.0)


class KernelInput(NamedTuple):
    """Hold the values that a kernel reads and overwrites by their gradient, and the bias it adds.

    The values are the logits if the kernel computes f itself, else f(z), computed by torch.
    """

    values: Tensor
    bias_M: Tensor | None
    gss: tuple[float, float]  # c and k of the f that the kernel applies
    pullback: Callable[[Tensor], Tensor] | None  # from that gradient to the logits'; None: the same

    @classmethod
    def of(cls, kernels: Kernels, logits: Tensor, bias_M: Tensor | None) -> KernelInput:
        """Return the logits themselves or, where no kernel knows f, f(z), widened."""
        gss = kernels.plan.head.pointwise.gss_constants
        if gss is not None:
            return cls(logits, bias_M, gss, None)
        wide = logits.to(kernels.wide)
        if bias_M is not None:
            wide.add_(bias_M)
        values, pullback = kernels.vjp(wide)
        return cls(values.contiguous(), None, IDENTITY, pullback)

    def write_gradient(self, logits: Tensor) -> None:
        """Write the gradient of the logits into them, once `values` is its own."""
        if self.pullback is not None:
            copy_unless_same(self.pullback(self.values), logits)


def empty_scores(kernels: Kernels, rows: Tensor) -> Scores:
    """Return unwritten scores, one for each of the rows."""
    plan, count = kernels.plan, len(rows)
    return Scores(
        rows.new_empty(count, dtype=kernels.wide),
        rows.new_empty(count, dtype=kernels.wide) if plan.smooth else None,
        rows.new_empty(count, dtype=torch.bool) if plan.accuracy else None,
    )
