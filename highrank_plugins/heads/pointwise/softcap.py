"""Define the soft cap of Gemma 2 (Gemma Team 2024)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from highrank_plugins.heads.checks import positive
from highrank_plugins.heads.pointwise.base import (
    VJP,
    Pointwise,
    register_pointwise,
)
from highrank_plugins.heads.pointwise.sigmoid_cap import logistic_vjp
from highrank_plugins.losses.plan import KernelFunction

MOST_CAP = 1000  # the kernels' 2c σ(2z / c) − c loses digits of z in float32 as c grows


@register_pointwise("softcap")
class Softcap(Pointwise):
    """Apply f(z) = c tanh(z / c), between −c and c   (Gemma 2, 2024, whose c is 30).

    Args:
        cap: c in (0, 1000], the largest absolute value of a logit.
    """

    is_increasing: ClassVar[bool] = True
    option_help: ClassVar = {"cap": "c: logits stay between -c and c"}
    constants = ("cap",)

    def __init__(self, cap: float = 30.0) -> None:
        super().__init__()
        self.cap = positive("softcap: cap", cap)
        if self.cap > MOST_CAP:
            raise ValueError(
                f"softcap: cap must be at most {MOST_CAP:,}, got {cap:g}; logits without a cap "
                "need no function"
            )

    @property
    def kernel_function(self) -> KernelFunction | None:
        # 2c σ(2z / c) − c = c tanh(z / c)
        return KernelFunction("logistic", (2 * self.cap, 0.0, self.cap / 2, -self.cap))

    def apply_to(self, z: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return self.cap * torch.tanh(z / self.cap)

    def prepare_vjp(
        self, tensors: dict[str, Tensor], sums: dict[str, Tensor], dtype: torch.dtype
    ) -> VJP:
        return logistic_vjp(2 * self.cap, 0.0, self.cap / 2, -self.cap)

    def extra_repr(self) -> str:
        return f"cap={self.cap}"
