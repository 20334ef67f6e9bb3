"""Define piecewise linear increasing functions (Ganea et al. 2019)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from highrank_plugins.heads.checks import NOT_NEGATIVE, POSITIVE, boolean, integer, number
from highrank_plugins.heads.pointwise.base import (
    VJP,
    Pointwise,
    Pullback,
    register_pointwise,
    softplus,
)
from highrank_plugins.losses.plan import KernelFunction, Named


@register_pointwise("plif")
class PLIF(Pointwise):
    """Apply f(z) = s_i (z + T − iD) + D Σ_{j<i} s_j,  i = clamp(⌊(z + T)/D⌋, 0, Q−1).

    Ganea et al. 2019. [−T, T] is cut into Q cells of width D = 2T/Q; s_i = log(1 + e^{v_i}) is the
    slope in cell i; f(−T) = 0 and the end slopes continue outside. `slope_logits` [Q] holds v.

    Args:
        bound: T > 0; knots are spread evenly over [-T, T].
        knots: number of knots Q, the paper's K.
        init_sd: standard deviation of the slope logits v at the start, around slope 1.
        freeze: do not train the slopes (Parthiban et al. 2021 call this frozen PLIF).
    """

    is_increasing: ClassVar[bool] = True
    constants = ("bound",)
    own_rate = "slope_logits"

    def __init__(
        self, bound: float = 20.0, knots: int = 100_000, init_sd: float = 1.0, freeze: bool = False
    ) -> None:
        super().__init__()
        self.bound = number("plif: bound", bound, POSITIVE)
        self.knots = knots = integer("plif: knots", knots)
        self.init_sd = number("plif: init_sd", init_sd, NOT_NEGATIVE)
        learns = not boolean("plif: freeze", freeze)
        self.slope_logits = nn.Parameter(torch.empty(knots), requires_grad=learns)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        slope_one = math.log(math.e - 1)
        self.slope_logits.copy_(slope_one + self.init_sd * torch.randn(self.knots))

    @property
    def freeze(self) -> bool:
        """Whether the slopes stay as they were drawn."""
        return not self.slope_logits.requires_grad

    @property
    def cell_width(self) -> float:
        """Return D = 2T/Q."""
        return 2 * self.bound / self.knots

    @property
    def kernel_function(self) -> KernelFunction | None:
        return KernelFunction("plif", (self.bound, self.cell_width), ("slopes", "left"))

    def slopes(self) -> Tensor:
        return self.tensors()["slopes"].detach()

    def domain(self) -> float:
        return self.bound

    def tensors(self) -> Named:
        # float64, because in float32 the sum over 1e5 cells is off by 8e-6
        slopes = softplus(self.slope_logits.double())
        left = self.cell_width * (slopes.cumsum(0) - slopes)
        return {"slopes": slopes, "left": left}

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        return _PiecewiseLinear.apply(
            z, tensors["slopes"], tensors["left"], self.bound, self.cell_width
        )

    def prepare_vjp(self, tensors: Named, sums: Named, dtype: torch.dtype) -> VJP:
        slopes, left = (tensors[name].to(dtype) for name in ("slopes", "left"))

        def evaluate(z: Tensor) -> tuple[Tensor, Pullback]:
            cell = _cell(z, self.bound, self.cell_width, self.knots)
            offset = _offset_in_cell(z, cell, self.bound, self.cell_width)
            slope = slopes[cell]
            torch.addcmul(left[cell], offset, slope, out=z)

            def pullback(grad: Tensor) -> Tensor:
                if "left" in sums:
                    sums["left"].add_(_histogram(cell, grad, tensors["left"]))
                if "slopes" in sums:
                    sums["slopes"].add_(_histogram(cell, offset.mul_(grad), tensors["slopes"]))
                return grad.mul_(slope)

            return z, pullback

        return evaluate


class _PiecewiseLinear(torch.autograd.Function):
    """Apply f(z) = slopes[i] (z − knot_i) + left[i]; histograms are the gradient of the tables."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, slopes: Tensor, left: Tensor, bound: float, width: float
    ) -> Tensor:
        ctx.bound, ctx.width = bound, width
        ctx.save_for_backward(z, slopes)
        cell = _cell(z, bound, width, slopes.numel())
        offset = _offset_in_cell(z, cell, bound, width)
        return offset.mul_(slopes.to(z.dtype)[cell]).add_(left.to(z.dtype)[cell])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, slopes = ctx.saved_tensors
        cell = _cell(z, ctx.bound, ctx.width, slopes.numel())
        grad_z = grad_slopes = grad_left = None
        if ctx.needs_input_grad[0]:
            grad_z = grad * slopes.to(z.dtype)[cell]
        if ctx.needs_input_grad[1]:
            offset = _offset_in_cell(z, cell, ctx.bound, ctx.width)
            grad_slopes = _histogram(cell, offset.mul_(grad), slopes)
            grad_left = _histogram(cell, grad, slopes)
        return grad_z, grad_slopes, grad_left, None, None


def _cell(z: Tensor, bound: float, width: float, knots: int) -> Tensor:
    """Return each value's cell index; clamp before the cast, since ±1e30 and NaN have none."""
    position = (z.detach() + bound).div_(width).clamp_(0, knots - 1).nan_to_num_(0.0)
    return position.to(torch.int32 if knots < 2**24 else torch.int64)


def _offset_in_cell(z: Tensor, cell: Tensor, bound: float, width: float) -> Tensor:
    """Return z − knot_i, with knot_i = iD − T."""
    return (z + bound).sub_(cell.to(z.dtype), alpha=width)


def _histogram(cell: Tensor, weights: Tensor, like: Tensor) -> Tensor:
    """Sum the weights in each cell, deterministically on every device."""
    flat, values = cell.flatten(), weights.flatten()
    if flat.device.type != "cpu" or torch.is_grad_enabled():
        # On CUDA bincount adds in any order and index_put sorts first; under create_graph the
        # sum must be differentiable itself.
        sums = torch.zeros_like(like)
        return sums.index_put((flat.long(),), values.to(like.dtype), accumulate=True)
    return torch.bincount(flat, weights=values, minlength=like.numel()).to(like.dtype)
