"""Define the identity: the plain softmax of a structure."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from highrank_plugins.heads.pointwise.base import (
    VJP,
    Pointwise,
    register_pointwise,
)
from highrank_plugins.losses.chunked_head import KernelFunction


@register_pointwise("identity")
class Identity(Pointwise):
    """Apply f(z) = z."""

    is_increasing: ClassVar[bool] = True
    is_identity: ClassVar[bool] = True
    kernel_function = KernelFunction("identity")

    def apply_to(self, z: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return z

    def prepare_vjp(
        self, tensors: dict[str, Tensor], sums: dict[str, Tensor], dtype: torch.dtype
    ) -> VJP:
        return lambda z: (z, lambda grad: grad)
