"""Define the interface of a pointwise function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from highrank_plugins.heads.log_probs import widen
from highrank_plugins.heads.registry import Registry, keep_what_holds, named_tensors
from highrank_plugins.losses.plan import KernelFunction, Named
from highrank_plugins.own_layers.ours import bound, is_ours, same_form

Pullback = Callable[[Tensor], Tensor]
# z → f(z), and the map from the gradient of f(z) to the gradient of z (a vector-Jacobian product)
VJP = Callable[[Tensor], tuple[Tensor, Pullback]]
# family of kernel functions without tables → its VJP, from the numbers of the `KernelFunction`
VJPS: dict[str, Callable[..., VJP]] = {}

# attributes that hold for one f; a subclass with another f has the versions of `Pointwise`
OF_FUNCTION = ("kernel_function", "prepare_vjp", "is_identity", "is_increasing", "slopes")


class Pointwise(nn.Module):
    """Apply a scalar function f to every logit before its softmax.

    A subclass implements `apply_to`. If it has parameters, `tensors` may return what `apply_to`
    reads: tensors prepared once for a whole batch, differentiable with respect to the parameters.
    `prepare_vjp` serves the fused losses, which write gradients out; its default uses autograd.
    """

    needs: ClassVar[dict[str, tuple[str, ...]]] = {"apply_to": OF_FUNCTION}
    # options that change the function but no parameter; see `Registry.constants`
    constants: tuple[str, ...] | None = None
    # the parameter for which a model has a learning rate of its own, --head-<name>-lr
    own_rate: ClassVar[str | None] = None
    is_identity: ClassVar[bool] = False
    # whether f(z) increases with z, whatever the parameters
    is_increasing: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        keep_what_holds(cls)

    @property
    def kernel_function(self) -> KernelFunction | None:
        """Return the function that compiled kernels compute instead of `apply_to`, if any."""
        return None

    def takes_infinity(self) -> bool:
        """Whether −∞ of a bias leaves numbers; in a parameter's gradient, 0 × ∞ would be NaN."""
        return not any(True for _ in self.parameters())

    def slopes(self) -> Tensor | None:
        """Return the slopes [Q] of a piecewise linear function; None for others."""
        return None

    def domain(self) -> float:
        """Return T, where [−T, T] is the interval on which plots draw f."""
        return 20.0

    def reset_parameters(self) -> None:
        """Give the parameters initial values, as the constructor does from the same seed."""
        if self._parameters:
            raise NotImplementedError(
                f"{type(self).__name__} has parameters: define its reset_parameters()"
            )

    def tensors(self) -> Named:
        """Return what `apply_to` reads besides the logits. Default: the parameters, widened."""
        return {name: widen(tensor) for name, tensor in named_tensors(self).items()}

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        """Return f(z) for logits of any shape, in their dtype; `tensors` come from `tensors()`."""
        raise NotImplementedError

    def prepare_vjp(self, tensors: Named, sums: Named, dtype: torch.dtype) -> VJP:
        """Return f without a graph, see `VJP`: of `VJPS`, or by autograd.

        It may overwrite its arguments. The pullback adds gradients of `tensors` to their `sums`.
        """
        known = self.kernel_function
        if known is not None and known.family in VJPS:
            return VJPS[known.family](*known.numbers)
        return self._vjp_by_autograd(tensors, sums)

    def _vjp_by_autograd(self, tensors: Named, sums: Named) -> VJP:
        leaves = {name: t.detach().requires_grad_(name in sums) for name, t in tensors.items()}
        ours = is_ours(self)

        def evaluate(z: Tensor) -> tuple[Tensor, Pullback]:
            z = z.detach().requires_grad_()
            with torch.enable_grad():
                if ours:
                    found = self.apply_to(z, leaves)
                else:
                    found = bound(self, leaves, lambda own: self.apply_to(z, own))
            values = same_form(self, found, z)

            def pullback(grad: Tensor) -> Tensor:
                wanted = [z, *(leaves[name] for name in sums)]
                grad_z, *rest = torch.autograd.grad(values, wanted, grad, allow_unused=True)
                for total, found in zip(sums.values(), rest, strict=True):
                    if found is not None:
                        total.add_(found)
                return grad_z

            return values.detach().clone(), pullback

        return evaluate

    def forward(self, z: Tensor) -> Tensor:
        """Return f(z)."""
        return self.apply_to(z, self.tensors())


POINTWISE: Registry[type[Pointwise]] = Registry("pointwise function", base=Pointwise)
register_pointwise = POINTWISE.register


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + e^x) of any shape and floating dtype.

    torch's default turns linear above 20, where it is 2e-9 off. This one turns linear above 40: the
    error, e^-40, is below the resolution of float64, and e^40 does not overflow float32.
    """
    return F.softplus(x, threshold=40.0)


@register_pointwise("identity")
class Identity(Pointwise):
    """Apply f(z) = z."""

    is_increasing: ClassVar[bool] = True
    is_identity: ClassVar[bool] = True
    kernel_function = KernelFunction("identity")

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        return z


VJPS["identity"] = lambda: lambda z: (z, lambda grad: grad)
