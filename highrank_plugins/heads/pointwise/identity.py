"""No function at all: the plain softmax of a structure."""

from __future__ import annotations

from torch import Tensor

from .base import Pointwise, register_pointwise


@register_pointwise("identity")
class Identity(Pointwise):
    """f(z) = z."""

    def apply_to(self, z: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return z
