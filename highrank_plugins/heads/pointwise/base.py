"""What a pointwise function is."""

from __future__ import annotations

from torch import Tensor, nn

from ..precision import widen
from ..registry import Registry

POINTWISE: Registry[type[Pointwise]] = Registry("pointwise function")
register_pointwise = POINTWISE.register


class Pointwise(nn.Module):
    """A scalar function f applied to every logit before its softmax.

    A subclass implements `apply_to`. One that has parameters may also name in `tensors` what
    `apply_to` reads: tensors prepared once for a whole batch, differentiable with respect to the
    parameters, so that a chunked loss neither prepares them anew for each chunk nor loses their
    gradient.
    """

    def tensors(self) -> dict[str, Tensor]:
        """What `apply_to` reads besides the logits. Default: the parameters, widened."""
        return {name: widen(parameter) for name, parameter in self.named_parameters()}

    def apply_to(self, z: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """f(z) for logits of any shape, in their dtype; `tensors` as `tensors()` returns them."""
        raise NotImplementedError

    def forward(self, z: Tensor) -> Tensor:
        """f(z)."""
        return self.apply_to(z, self.tensors())
