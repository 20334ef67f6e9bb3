"""The singular values of the vocabulary matrix and the projector on its columns, from one Gram."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..analysis.gram import RELIABLE, gram_matrix

CLASSES = 4096  # rows of W that are widened at a time


class ColumnSpace(NamedTuple):
    """Of W [M, d]: its singular values, and what turns W into a basis of its columns.

    values: [d], descending, float64; right above 1e-7 of the largest.
    to_basis: B [d, r] with orthonormal columns of W B, r the number of values above that.
    """

    values: Tensor
    to_basis: Tensor


def column_space(weight: Tensor) -> ColumnSpace:
    """WᵀW = V diag(σ²) Vᵀ and B = V diag(1/σ); M d² + O(d³) operations, nothing of size M kept.

    Raises:
        ValueError: entries that are not finite.
    """
    squares, vectors = torch.linalg.eigh(gram_matrix([weight.detach()]))
    values = squares.clamp_min(0).sqrt()
    kept = values > RELIABLE * values[-1]
    return ColumnSpace(values.flip(0), vectors[:, kept] / values[kept])


def squared_norms(weight: Tensor, to_basis: Tensor, rows: Tensor) -> tuple[float, float]:
    """(‖G P‖², ‖G‖²) of rows G [n, M], with P the projector on the columns of W.

    The same as in `gradient_retention`, whose decomposition of W costs several times as much.
    """
    through = rows.new_zeros(len(rows), weight.size(1), dtype=torch.float64)
    for part, own in zip(rows.split(CLASSES, 1), weight.detach().split(CLASSES), strict=True):
        through.addmm_(part.double(), own.double())  # 1/σ would magnify errors of float32
    return float((through @ to_basis).square().sum()), float(rows.double().square().sum())
