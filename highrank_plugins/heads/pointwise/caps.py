"""Define bounds of logits: the soft cap of Gemma 2, and the sigmoid of the nanoGPT speed runs."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from highrank_plugins.common.options import Range
from highrank_plugins.heads.checks import POSITIVE, number
from highrank_plugins.heads.pointwise.base import VJP, VJPS, Pointwise, Pullback, register_pointwise
from highrank_plugins.losses.plan import KernelFunction, Named

# the kernels' 2c σ(2z / c) − c loses digits of z in float32 as c grows
CAP = Range(0, 1000, above_low=True)


@register_pointwise("sigmoid_cap")
class SigmoidCap(Pointwise):
    """Apply f(z) = a σ((z + b) / s), between 0 and a.

    The defaults are those of modded-nanogpt (github.com/KellerJordan/modded-nanogpt, 2026); its
    earlier records had a = 30, b = 0, s = 7.5.

    Args:
        height: a > 0; logits stay between 0 and a.
        shift: b, added to each logit.
        scale: s > 0, width of the sigmoid.
    """

    is_increasing: ClassVar[bool] = True
    constants = ("height", "shift", "scale")

    def __init__(self, height: float = 23.0, shift: float = 5.0, scale: float = 7.5) -> None:
        super().__init__()
        self.height = number("sigmoid_cap: height", height, POSITIVE)
        self.shift = number("sigmoid_cap: shift", shift)
        self.scale = number("sigmoid_cap: scale", scale, POSITIVE)

    @property
    def kernel_function(self) -> KernelFunction | None:
        return KernelFunction("logistic", (self.height, self.shift, self.scale, 0.0))

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        return self.height * torch.sigmoid((z + self.shift) / self.scale)


@register_pointwise("softcap")
class Softcap(Pointwise):
    """Apply f(z) = c tanh(z / c), between −c and c   (Gemma 2, 2024, whose c is 30).

    Args:
        cap: c in (0, 1000]; logits stay between -c and c.
    """

    is_increasing: ClassVar[bool] = True
    constants = ("cap",)

    def __init__(self, cap: float = 30.0) -> None:
        super().__init__()
        self.cap = number("softcap: cap", cap, CAP)

    @property
    def kernel_function(self) -> KernelFunction | None:
        # 2c σ(2z / c) − c = c tanh(z / c)
        return KernelFunction("logistic", (2 * self.cap, 0.0, self.cap / 2, -self.cap))

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        return self.cap * torch.tanh(z / self.cap)


def logistic_vjp(a: float, b: float, s: float, d: float) -> VJP:
    """Return f(z) = a σ((z + b) / s) + d for the fused losses; its slope is (a/s) σ (1 − σ)."""

    def evaluate(z: Tensor) -> tuple[Tensor, Pullback]:
        gate = z.add_(b).div_(s).sigmoid_()
        values = torch.mul(gate, a)
        if d:
            values.add_(d)

        def pullback(grad: Tensor) -> Tensor:
            return grad.mul_(gate).mul_(gate.neg_().add_(1)).mul_(a / s)

        return values, pullback

    return evaluate


VJPS["logistic"] = logistic_vjp
