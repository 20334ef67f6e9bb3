"""Compute singular values through XᵀX, which is cheaper but loses small ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from highrank_plugins.analysis.blocks import checked_blocks, chunks

# σ² has an error of a few eps σ_max². At 1e-7 σ_max the eigenvalue is 50 eps; below, it is noise
RELIABLE = 1e-7


def gram_matrix(blocks: Iterable[Tensor]) -> Tensor:
    """Return XᵀX [M, M] in float64, for X the rows of all blocks [n_i, M].

    For the parts of a matrix, XᵀX of the whole is the sum over the parts.

    Raises:
        ValueError: as `checked_blocks`.
    """
    gram = Gram()
    for block in checked_blocks(blocks):
        gram.add(block)
    return gram.matrix()


class Gram:
    """Add up XᵀX over rows that arrive in blocks."""

    def __init__(self) -> None:
        self._total: Tensor | None = None

    def add(self, block: Tensor) -> None:
        """Add the rows of a block [n, M]."""
        if self._total is None:
            self._total = block.new_zeros(block.size(1), block.size(1), dtype=torch.float64)
        for part in chunks(block, 2**24):
            wide = part.double()
            self._total.addmm_(wide.t(), wide)

    def matrix(self) -> Tensor:
        """Return XᵀX [M, M].

        Raises:
            ValueError: there are no rows.
        """
        if self._total is None:
            raise ValueError("no rows: all blocks are empty")
        return self._total


def gram_singular_values(gram: Tensor) -> Tensor:
    """Return √eigenvalues of XᵀX [M, M], descending; noise below `RELIABLE` times the largest."""
    return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()
