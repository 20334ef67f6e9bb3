"""Define vocabulary matrices that have a parameter of their own shape, which may be tied."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from highrank_plugins.heads.log_probs import widen
from highrank_plugins.heads.vocabulary.base import Vocabulary, register_vocabulary


@register_vocabulary("centred")
class Centred(Vocabulary):
    """Compute V less the mean of its rows   (output embedding centring, arXiv 2601.02031)."""

    def forward(self, raw: Tensor) -> Tensor:
        return raw - raw.mean(0)


@register_vocabulary("unit")
class Unit(Vocabulary):
    """Compute s v_x / |v_x| with a learned scale s   (nGPT, arXiv 2410.01131).

    s starts as the mean norm of the rows of the matrix, or as each of them. A row of zeros, such as
    fairseq's of the padding symbol, stays.

    Args:
        by_class: whether each class has a scale of its own, as in nGPT.
    """

    option_help: ClassVar = {"by_class": "a scale for each class, as in nGPT, instead of one"}
    constants = ()

    def __init__(self, by_class: bool = False) -> None:
        super().__init__()
        self.by_class = bool(by_class)
        self.scale = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def right_inverse(self, matrix: Tensor) -> Tensor:
        norms = _norms(matrix)
        start = (norms if self.by_class else norms.mean()).to(matrix.dtype)
        if self.scale.shape != start.shape or self.scale.device != start.device:
            self.scale = nn.Parameter(start)
        self.scale.copy_(start)
        return matrix

    def forward(self, raw: Tensor) -> Tensor:
        norms = _norms(raw)
        factors = self.scale / norms.masked_fill(norms == 0, torch.inf)
        return raw * factors.to(raw.dtype).unsqueeze(1)


def _norms(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=widen(rows[:0]).dtype)
