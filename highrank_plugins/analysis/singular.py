"""Compute singular values of matrices that do not fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank_plugins.analysis.blocks import checked_blocks
from highrank_plugins.analysis.gram import RELIABLE, Gram, gram_singular_values
from highrank_plugins.analysis.rank import press_rank, press_tolerance
from highrank_plugins.analysis.tsqr import Triangle, triangle

METHODS = ("auto", "tsqr", "gram")


@dataclass(frozen=True)
class Spectrum:
    """Hold singular values and how they were computed.

    values: [min(N, M)], float64, descending. shape: (N, M).
    dtype: of the computation; method: "tsqr" or "gram".
    matrix_dtype: the narrowest of the blocks.
    smallest_reliable: below it lies rounding noise, of the matrix or of the computation.
    """

    values: Tensor
    shape: tuple[int, int]
    dtype: torch.dtype
    method: str
    matrix_dtype: torch.dtype
    smallest_reliable: float

    def press_rank(self, dtype: torch.dtype | None = None) -> int:
        """Return `press_rank` with this shape, at the resolution of dtype (default: that used).

        Raises:
            ValueError: the tolerance of dtype lies below `smallest_reliable`.
        """
        dtype = dtype or self.dtype
        tolerance = press_tolerance(float(self.values[0]), self.shape, dtype)
        if tolerance < self.smallest_reliable:
            raise ValueError(
                f"the Press rank in {dtype} counts singular values above {tolerance:.3g}, but "
                f"those below {self.smallest_reliable:.3g} are rounding noise of a "
                f"{self.matrix_dtype} matrix and of {self.method!r} in {self.dtype}: compute "
                f"the blocks in {dtype}, and choose method='tsqr', dtype={dtype}"
            )
        return press_rank(self.values, self.shape, dtype)


def spectrum(
    blocks: Iterable[Tensor],
    dtype: torch.dtype = torch.float64,
    method: str = "auto",
    merge_rows: int | None = None,
) -> Spectrum:
    """Return the singular values of X [N, M], which arrives in blocks [n_i, M] and is never held.

    - "tsqr": singular values of the triangle of X, in `dtype`; errors are a few eps(dtype) σ_max.
    - "gram": square roots of the eigenvalues of XᵀX in float64; accurate above 1e-7 σ_max, which is
      finer than the resolution of float32.
    - "auto": "tsqr" for float64; "gram" for float32, where its error is within tsqr's.

    Args:
        merge_rows: see `triangle`.
    Raises:
        ValueError: an unknown dtype or method, a single row, and what
            `checked_blocks` refuses.
    """
    rows = SpectrumRows(dtype, method, merge_rows)
    for block in checked_blocks(blocks):
        rows.add(block)
    return whole_spectrum([rows.part()])


@dataclass(frozen=True)
class SpectrumPart:
    """Hold the contribution of n rows of X to a spectrum: their triangle, or XᵀX ("gram").

    matrix: [min(n, M), M] or [M, M]. rows: n. The other attributes are as in `Spectrum`.
    """

    matrix: Tensor
    rows: int
    dtype: torch.dtype
    method: str
    matrix_dtype: torch.dtype


class SpectrumRows:
    """Collect rows that arrive in blocks, in one of several processes, for `whole_spectrum`.

    Args, raises: as `spectrum`.
    """

    def __init__(
        self,
        dtype: torch.dtype = torch.float64,
        method: str = "auto",
        merge_rows: int | None = None,
    ) -> None:
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype: expected torch.float32 or torch.float64, got {dtype}")
        if method not in METHODS:
            raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
        if method == "auto":
            method = "gram" if dtype == torch.float32 else "tsqr"
        self._dtype, self._method = dtype, method
        self._sum = Gram() if method == "gram" else Triangle(dtype, merge_rows)
        self._rows, self._narrowest = 0, torch.float64

    def add(self, block: Tensor) -> None:
        """Add the rows of a block [n, M], which `checked_blocks` has passed."""
        self._sum.add(block)
        self._rows += block.size(0)
        self._narrowest = max(self._narrowest, block.dtype, key=_resolution)

    def part(self) -> SpectrumPart:
        """Return the contribution of these rows to the spectrum of the whole matrix.

        Raises:
            ValueError: there are no rows.
        """
        matrix = self._sum.matrix()
        return SpectrumPart(matrix, self._rows, self._dtype, self._method, self._narrowest)


def whole_spectrum(parts: Sequence[SpectrumPart]) -> Spectrum:
    """Return the spectrum of all rows from the parts of one matrix, made with one dtype and method.

    Raises:
        ValueError: a single row.
    """
    rows, dtype, method = sum(part.rows for part in parts), parts[0].dtype, parts[0].method
    if rows == 1:
        raise ValueError("a single row always has rank 1: collect more contexts")
    matrices = [part.matrix.to(parts[0].matrix.device) for part in parts]
    if method == "gram":
        values = gram_singular_values(sum(matrices[1:], matrices[0]))
    else:
        whole = matrices[0] if len(matrices) == 1 else triangle(matrices, dtype)
        values = torch.linalg.svdvals(whole).double()
    matrix_dtype = max((part.matrix_dtype for part in parts), key=_resolution)
    shape = (rows, matrices[0].size(1))
    values = values[: min(shape)]
    largest = float(values[0])
    reliable = press_tolerance(largest, shape, max(matrix_dtype, dtype, key=_resolution))
    if method == "gram":
        reliable = max(RELIABLE * largest, press_tolerance(largest, shape, matrix_dtype))
    return Spectrum(values, shape, dtype, method, matrix_dtype, reliable)


def singular_values(
    blocks: Iterable[Tensor], dtype: torch.dtype = torch.float64, method: str = "auto"
) -> Tensor:
    """Return the `values` [min(N, M)] of `spectrum`: float64, descending."""
    return spectrum(blocks, dtype, method).values


def _resolution(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps
