"""Singular values by way of XᵀX: cheaper, and blind to small ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .blocks import checked_blocks, chunks

# σ² has an error of a few eps σ_max²: at 1e-7 σ_max the eigenvalue is 50 eps, below it is noise
RELIABLE = 1e-7


def gram_matrix(blocks: Iterable[Tensor]) -> Tensor:
    """XᵀX [M, M] in float64, for X the rows of all blocks [n_i, M]; of parts, it is their sum.

    Raises:
        ValueError: as `checked_blocks`.
    """
    total = None
    for block in checked_blocks(blocks):
        if total is None:
            total = block.new_zeros(block.size(1), block.size(1), dtype=torch.float64)
        for part in chunks(block, 2**24):
            wide = part.double()
            total.addmm_(wide.t(), wide)
    if total is None:
        raise ValueError("no rows: all blocks are empty")
    return total


def gram_singular_values(gram: Tensor) -> Tensor:
    """√eigenvalues of XᵀX [M, M], descending; below `RELIABLE` times the largest they are noise."""
    return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()
