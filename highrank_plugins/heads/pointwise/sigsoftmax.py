"""Define SigSoftmax (Kanai et al. 2018)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from highrank_plugins.heads.pointwise.base import (
    VJP,
    Pointwise,
    register_pointwise,
    softplus,
)
from highrank_plugins.heads.pointwise.gss import gss_vjp
from highrank_plugins.losses.plan import KernelFunction


@register_pointwise("sigsoftmax")
class SigSoftmax(Pointwise):
    """Apply f(z) = 2z − log(1 + e^z); e^f = e^z σ(z)   (Kanai et al. 2018). Slope in (1, 2)."""

    is_increasing: ClassVar[bool] = True
    kernel_function = KernelFunction("gss", (0.0, 2.0))

    def apply_to(self, z: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return 2 * z - softplus(z)

    def prepare_vjp(
        self, tensors: dict[str, Tensor], sums: dict[str, Tensor], dtype: torch.dtype
    ) -> VJP:
        return gss_vjp(0.0, 2.0)
