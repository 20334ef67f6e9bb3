"""SigSoftmax (Kanai et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.heads.pointwise.base import Evaluate, Pointwise, register_pointwise
from highrank_plugins.heads.pointwise.bent_line import bent_line
from highrank_plugins.heads.pointwise.softplus import softplus


@register_pointwise("sigsoftmax")
class SigSoftmax(Pointwise):
    """f(z) = 2z − log(1 + e^z), so that e^f = e^z σ(z)   (Kanai et al. 2018). Slope in (1, 2)."""

    bent_line = (0.0, 2.0)

    def apply_to(self, z: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return 2 * z - softplus(z)

    def bind(
        self, tensors: dict[str, Tensor], sums: dict[str, Tensor], dtype: torch.dtype
    ) -> Evaluate:
        return bent_line(*self.bent_line)
