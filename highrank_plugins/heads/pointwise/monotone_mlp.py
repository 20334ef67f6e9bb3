"""Define Ganea's general monotone network."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from highrank_plugins.heads.checks import POSITIVE, integer, number
from highrank_plugins.heads.pointwise.base import Pointwise, register_pointwise, softplus
from highrank_plugins.losses.plan import Named


@register_pointwise("monotone_mlp")
class MonotoneMLP(Pointwise):
    """Apply f(z) = Σ_i v_i σ(u_i z + b_i) + b with u, v > 0   (Ganea et al. 2019, eq. 14).

    u = log(1 + e^in_logits) and v = log(1 + e^out_logits) stay positive. The sum is bounded, so f
    is not onto the real line. It holds `units` copies of a chunk of logits, so use it for small
    synthetic problems, as in the paper. The paper gives neither size nor initial values; ours
    starts as a staircase of sigmoids with mean slope 1 on [−bound, bound].

    Args:
        units: number of sigmoids.
        bound: the sigmoids are spread over [-bound, bound] at the start.
    """

    is_increasing: ClassVar[bool] = True
    constants = ()  # the bound only sets initial values

    def __init__(self, units: int = 16, bound: float = 20.0) -> None:
        super().__init__()
        units = integer("monotone_mlp: units", units)
        self.units, self.bound = units, number("monotone_mlp: bound", bound, POSITIVE)
        self.in_logits = nn.Parameter(torch.empty(units))
        self.in_bias = nn.Parameter(torch.empty(units))
        self.out_logits = nn.Parameter(torch.empty(units))
        self.out_bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        units, bound = self.units, self.bound
        step = 2 * bound / units
        centres = torch.linspace(-bound + step / 2, bound - step / 2, units)
        slope, height = 4 / step, step
        self.in_logits.copy_(_inverse_softplus(slope))
        self.in_bias.copy_(-slope * centres)
        self.out_logits.copy_(_inverse_softplus(height))
        self.out_bias.fill_(-bound)

    def tensors(self) -> Named:
        own = super().tensors()
        return {
            "in_slopes": softplus(own["in_logits"]),
            "in_bias": own["in_bias"],
            "heights": softplus(own["out_logits"]),
            "out_bias": own["out_bias"],
        }

    def apply_to(self, z: Tensor, tensors: Named) -> Tensor:
        u, b, v, b_out = (
            tensors[name].to(z.dtype) for name in ("in_slopes", "in_bias", "heights", "out_bias")
        )
        return (torch.sigmoid(z.unsqueeze(-1) * u + b) * v).sum(-1) + b_out


def _inverse_softplus(y: float) -> Tensor:
    """Return x with log(1 + e^x) = y > 0; a scalar."""
    value = torch.tensor(y)
    return value + torch.log(-torch.expm1(-value))
