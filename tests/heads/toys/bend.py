"""A pointwise function that the package does not have: f(z) = z + a tanh(z), a learnt."""

import torch
from torch import nn

from highrank_plugins.heads import Pointwise, register_pointwise


@register_pointwise("bend")
class Bend(Pointwise):
    def __init__(self, start: float = 0.5) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(start)))

    def apply_to(self, z, tensors):
        return z + tensors["a"].to(z.dtype) * z.tanh()
