"""Add the gradients of a head's small products to their sums, as those of W are.

Autograd would write the gradient of each weight and of the features as a tensor of its own for each
block of tokens, in the dtype of products. Reading these back and adding them takes 1 to 2 % of a
mixture's time on a GPU, by the roofline model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from highrank_plugins.losses.fused.products import add_product_to


class GradientSum:
    """Add up gradients in a tensor, whose content before the first of them does not matter."""

    def __init__(self, total: Tensor) -> None:
        self.total, self.is_empty = total, True

    def add(self, grad: Tensor) -> None:
        """Add a gradient of the same shape."""
        (self.total.copy_ if self.is_empty else self.total.add_)(grad)
        self.is_empty = False

    def add_product(self, grad: Tensor, rows: Tensor) -> None:
        """Add grad^T @ rows."""
        add_product_to(self.total, grad, rows, self.is_empty)
        self.is_empty = False

    def finish(self) -> None:
        """Write zeros if there was no gradient."""
        if self.is_empty:
            self.total.zero_()


class SummedLinear(TorchFunctionMode):
    """Let `linear` add gradients of certain tensors to sums, instead of giving them to autograd.

    The values of `linear` stay the same. Any other use of the tensors is left to autograd.

    Args:
        sums: tensors that require gradients, and their sums: weights and biases of `linear`, or its
            first operand [n, F].
        compute: dtype of products under autocast; None: that of the operands.
    """

    def __init__(
        self, sums: Iterable[tuple[Tensor, GradientSum]], compute: torch.dtype | None
    ) -> None:
        super().__init__()
        self._sums = {id(tensor): gradients for tensor, gradients in sums}
        self.compute = compute

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if function is linear:
            x, weight, bias = _operands(*args, **kwargs)
            if x.dim() == 2 and any(id(t) in self._sums for t in (x, weight, bias)):
                sums = tuple(self._sums.get(id(t)) for t in (x, weight, bias))
                return _Linear.apply(x, weight, bias, sums, self.compute)
        return function(*args, **kwargs)


def _operands(
    input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


class _Linear(torch.autograd.Function):
    """Compute x W^T + b, and add the gradients of those operands that have sums to these."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        sums: tuple[GradientSum | None, ...],
        compute: torch.dtype | None,
    ) -> Tensor:
        ctx.sums, ctx.dtypes = sums, [None if t is None else t.dtype for t in (x, weight, bias)]
        if compute is not None:
            x, weight = x.to(compute), weight.to(compute)
            bias = None if bias is None else bias.to(compute)
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        found: list[Tensor | None] = [None] * 5
        for i, (left, right) in enumerate(((grad.t(), weight), (grad, x))):
            if ctx.sums[i] is not None:
                ctx.sums[i].add_product(left, right)
            elif ctx.needs_input_grad[i]:
                found[i] = (left.t() @ right).to(ctx.dtypes[i])
        if ctx.sums[2] is not None:
            ctx.sums[2].add(grad.sum(0, dtype=ctx.sums[2].total.dtype))
        elif ctx.needs_input_grad[2]:
            found[2] = grad.sum(0).to(ctx.dtypes[2])
        return tuple(found)
