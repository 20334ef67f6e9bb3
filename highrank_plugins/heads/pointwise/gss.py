"""Define SigSoftmax (Kanai et al. 2018) and Generalized SigSoftmax (Parthiban et al. 2021)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from highrank_plugins.heads.checks import POSITIVE, boolean, number
from highrank_plugins.heads.pointwise.base import (
    VJP,
    VJPS,
    Pointwise,
    Pullback,
    register_pointwise,
    softplus,
)
from highrank_plugins.losses.plan import KernelFunction, Named


@register_pointwise("gss")
class GeneralizedSigSoftmax(Pointwise):
    """Apply f(z) = k(z − c) + c − (k − 1) log(1 + e^(z−c))   (Parthiban et al. 2021).

    The slope runs from k (left of c) to 1 (right of it). c = 0, k = 2 is SigSoftmax, k = 1 the
    identity.

    Args:
        c: where the slope changes from k (below) to 1 (above).
        k: slope far below c, greater than 0.
        learn: train c and k, as the parameters `c` and `log_k`.
    """

    is_increasing: ClassVar[bool] = True

    def __init__(self, c: float = -1.5, k: float = 2.5, learn: bool = False) -> None:
        super().__init__()
        c, k = number("gss: c", c), number("gss: k", k, POSITIVE)
        self.c: nn.Parameter | float
        self._start = c, math.log(k)
        if boolean("gss: learn", learn):
            self.c, self.log_k = (nn.Parameter(torch.tensor(x)) for x in self._start)
        else:
            self.c, self._k = c, k
        self.learn = learn  # whether c and k are parameters
        self.constants = () if learn else ("c", "k")

    def reset_parameters(self) -> None:
        for parameter, start in zip(self.parameters(), self._start, strict=False):
            nn.init.constant_(parameter, start)

    @property
    def k(self) -> float:
        """Return the current slope on the far left."""
        return self.log_k.exp().item() if self.learn else self._k

    @property
    def kernel_function(self) -> KernelFunction | None:
        return None if self.learn else KernelFunction("gss", (float(self.c), self._k))

    def takes_infinity(self) -> bool:
        """Whether z + (k − 1) log σ(z − c) has no −∞ + ∞."""
        return not self.learn and self._k >= 1

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        c: float | Tensor
        k: float | Tensor
        if self.learn:
            c, k = tensors["c"].to(z.dtype), tensors["log_k"].to(z.dtype).exp()
        else:
            c, k = float(self.c), self._k
        x = z - c
        return k * x + c - (k - 1) * softplus(x)


@register_pointwise("sigsoftmax")
class SigSoftmax(Pointwise):
    """Apply f(z) = 2z − log(1 + e^z); e^f = e^z σ(z)   (Kanai et al. 2018). Slope in (1, 2)."""

    is_increasing: ClassVar[bool] = True
    kernel_function = KernelFunction("gss", (0.0, 2.0))

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        return 2 * z - softplus(z)


def gss_vjp(c: float, k: float) -> VJP:
    """Return GSS with fixed numbers for the fused losses: few passes, in place.

    f(z) = z + (k − 1) log σ(z − c) has the slope k − (k − 1) σ(z − c). It takes one log σ of each
    logit and one exponential of that.
    """

    def evaluate(z: Tensor) -> tuple[Tensor, Pullback]:
        log_gate = F.logsigmoid(z.sub(c) if c else z)
        values = z.add_(log_gate, alpha=k - 1)
        gate = log_gate.exp_()

        def pullback(grad: Tensor) -> Tensor:
            slope = gate.mul_(1 - k).add_(k)
            return grad.mul_(slope)

        return values, pullback

    return evaluate


VJPS["gss"] = gss_vjp
