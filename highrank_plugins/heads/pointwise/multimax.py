"""Define MultiMax (Zhou et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from highrank_plugins.heads.checks import NOT_NEGATIVE, number
from highrank_plugins.heads.pointwise.base import VJP, Pointwise, Pullback, register_pointwise
from highrank_plugins.losses.plan import KernelFunction, Named


@register_pointwise("multimax")
class MultiMax(Pointwise):
    """Apply f(z) = z + Σ_n [t_bn (b_n − z)₊^n + t_dn (z − d_n)₊^n], n = 1, 2   (Zhou et al. 2024).

    This is equation 6 of the paper, with the parameters of its code
    (github.com/ZhouYuxuanYX/MultiMax). Beyond learned thresholds, f bends small and large logits by
    learned strengths. It need not increase. `thresholds` holds b_1, d_1, b_2, d_2 and `strengths`
    the t in the same order.

    Args:
        init_sd: standard deviation of all eight numbers at the start; 0.02 in their code.
    """

    constants = ()
    kernel_function = KernelFunction("multimax", (), ("thresholds", "strengths"))

    def __init__(self, init_sd: float = 0.02) -> None:
        super().__init__()
        self.init_sd = number("multimax: init_sd", init_sd, NOT_NEGATIVE)
        self.thresholds = nn.Parameter(torch.empty(4))
        self.strengths = nn.Parameter(torch.empty(4))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for parameter in (self.thresholds, self.strengths):
            parameter.copy_(self.init_sd * torch.randn(4))

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        b1, d1, b2, d2 = tensors["thresholds"].to(z.dtype)
        t1, u1, t2, u2 = tensors["strengths"].to(z.dtype)
        linear = z + t1 * torch.relu(b1 - z) + u1 * torch.relu(z - d1)
        return linear + t2 * torch.relu(b2 - z) ** 2 + u2 * torch.relu(z - d2) ** 2

    def prepare_vjp(self, tensors: Named, sums: Named, dtype: torch.dtype) -> VJP:
        thresholds, strengths = (
            tensors[name].to(dtype).unbind() for name in ("thresholds", "strengths")
        )

        def evaluate(z: Tensor) -> tuple[Tensor, Pullback]:
            values, parts = z.clone(), []
            for i, (at, strength) in enumerate(zip(thresholds, strengths, strict=True)):
                beyond = torch.relu(z - at if i % 2 else at - z)
                values.addcmul_(beyond if i < 2 else beyond.square(), strength)
                parts.append(beyond)

            def pullback(grad: Tensor) -> Tensor:
                grad_z = grad.clone()
                for i, (beyond, strength) in enumerate(zip(parts, strengths, strict=True)):
                    # derivative of the part with respect to the distance beyond the threshold
                    slope = beyond.sign() if i < 2 else 2 * beyond
                    power = beyond if i < 2 else beyond.square()
                    if "strengths" in sums:
                        sums["strengths"][i] += (grad * power).sum()
                    by_beyond = slope.mul_(grad).mul_(strength)
                    side = 1 if i % 2 else -1
                    if "thresholds" in sums:
                        sums["thresholds"][i] -= side * by_beyond.sum()
                    grad_z.add_(by_beyond, alpha=side)
                return grad_z

            return values, pullback

        return evaluate
