"""Compute the triangle of a tall matrix that need not fit in memory (TSQR)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from highrank_plugins.analysis.blocks import checked_blocks


def triangle(
    blocks: Iterable[Tensor], dtype: torch.dtype = torch.float64, merge_rows: int | None = None
) -> Tensor:
    """Return R with RᵀR = XᵀX, for X the rows of all blocks: R has the singular values of X.

    R of [R; block] replaces R (Demmel et al. 2012, sequential TSQR). The triangles of parts of a
    matrix are blocks themselves: `singular_values([triangle(a), triangle(b)])` are those of a and
    b together. Processes merge their parts in this way.

    Args:
        blocks: [n_i, M].
        dtype: of the computation, float32 or float64.
        merge_rows: rows added to R at once, default M; (M + merge_rows) · M numbers are
            held, and (1 + M / merge_rows) times the fewest operations are done.
    Returns:
        [min(N, M), M]; for N ≤ M the rows themselves.
    Raises:
        ValueError: as `checked_blocks`, or merge_rows below 1.
    """
    rows = Triangle(dtype, merge_rows)
    for block in checked_blocks(blocks):
        rows.add(block)
    return rows.matrix()


class Triangle:
    """Build the triangle of rows that arrive in blocks; see `triangle`."""

    def __init__(self, dtype: torch.dtype, merge_rows: int | None = None) -> None:
        self._dtype, self._merge_rows = dtype, merge_rows
        self._stack: _Stack | None = None

    def add(self, block: Tensor) -> None:
        """Add the rows of a block [n, M]."""
        if self._stack is None:
            self._stack = _Stack(block, self._dtype, self._merge_rows)
        self._stack.add(block)

    def matrix(self) -> Tensor:
        """Return the triangle [min(N, M), M].

        Raises:
            ValueError: there are no rows.
        """
        if self._stack is None:
            raise ValueError("no rows: all blocks are empty")
        return self._stack.triangle()


class _Stack:
    """Keep [R; new rows] in one buffer, column by column as LAPACK wants it: its QR is in place."""

    def __init__(self, like: Tensor, dtype: torch.dtype, merge_rows: int | None) -> None:
        self.width = like.size(1)
        added = self.width if merge_rows is None else merge_rows
        if added < 1:
            raise ValueError(f"merge_rows must be at least 1, got {added}")
        self.buffer = like.new_empty(self.width, self.width + added, dtype=dtype).t()
        self.tau = like.new_empty(self.width, dtype=dtype)
        self.filled = 0

    def add(self, block: Tensor) -> None:
        while len(block):
            room = self.buffer.size(0) - self.filled
            taken, block = block[:room], block[room:]
            self.buffer[self.filled : self.filled + len(taken)] = taken
            self.filled += len(taken)
            if self.filled == self.buffer.size(0):
                self._reduce()

    def _reduce(self) -> None:
        # input and output share one tensor, which saves a second buffer
        torch.geqrf(self.buffer, out=(self.buffer, self.tau))
        self.buffer[: self.width].triu_()
        self.filled = self.width

    def triangle(self) -> Tensor:
        if self.filled > self.width:
            self.buffer[self.filled :] = 0  # rows of zeros change no singular value
            self._reduce()
        return self.buffer[: self.filled].clone()
