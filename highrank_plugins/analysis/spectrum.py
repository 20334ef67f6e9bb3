"""Measure spectra of matrices that arrive in blocks of rows and need not fit in memory.

Singular values may be given in any order; an empty tensor, NaN and negative ones are refused.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank_plugins.analysis.predictions import checked_blocks, chunks

METHODS = ("auto", "tsqr", "gram")
# σ² has an error of a few eps σ_max². At 1e-7 σ_max the eigenvalue is 50 eps; below, it is noise
RELIABLE = 1e-7


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

        A dtype whose tolerance lies below `smallest_reliable` is refused.
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
    blocks: Iterable[Tensor], dtype: torch.dtype = torch.float64, method: str = "auto"
) -> Spectrum:
    """Return the singular values of X [N, M], which arrives in blocks [n_i, M] and is never held.

    - "tsqr": those of R with RᵀR = XᵀX, in `dtype`; errors are a few eps(dtype) σ_max. R of
      [R; block] replaces R (Demmel et al. 2012, sequential TSQR); 2 M² numbers are held.
    - "gram": square roots of the eigenvalues of XᵀX in float64; accurate above 1e-7 σ_max, which is
      finer than the resolution of float32.
    - "auto": "tsqr" for float64; "gram" for float32, where its error is within tsqr's.

    Args:
        dtype: of the computation, float32 or float64.
    """
    return whole_spectrum([_collected(blocks, dtype, method)])


def gram_matrix(blocks: Iterable[Tensor]) -> Tensor:
    """Return XᵀX [M, M] in float64, for X the rows of all blocks [n_i, M]."""
    return _collected(blocks, torch.float64, "gram").matrix


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
    """Collect rows that arrive in blocks, in one of several processes; arguments: `spectrum`."""

    def __init__(self, dtype: torch.dtype, method: str) -> None:
        if method not in METHODS:
            raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
        if method == "auto":
            method = "gram" if dtype == torch.float32 else "tsqr"
        self._dtype, self._method = dtype, method
        self._sum: Tensor | _Triangle | None = None
        self._rows, self._narrowest = 0, torch.float64

    def add(self, block: Tensor) -> None:
        """Add the rows of a block [n, M], which `checked_blocks` has passed."""
        if self._sum is None:
            if self._method == "gram":
                self._sum = block.new_zeros(block.size(1), block.size(1), dtype=torch.float64)
            else:
                self._sum = _Triangle(block, self._dtype)
        if isinstance(self._sum, _Triangle):
            self._sum.add(block)
        else:
            for part in chunks(block, 2**24):
                wide = part.double()
                self._sum.addmm_(wide.t(), wide)
        self._rows += block.size(0)
        self._narrowest = max(self._narrowest, block.dtype, key=_resolution)

    def part(self) -> SpectrumPart:
        """Return the contribution of these rows to the spectrum of the whole matrix."""
        assert self._sum is not None
        matrix = self._sum if isinstance(self._sum, Tensor) else self._sum.matrix()
        return SpectrumPart(matrix, self._rows, self._dtype, self._method, self._narrowest)


def _collected(blocks: Iterable[Tensor], dtype: torch.dtype, method: str) -> SpectrumPart:
    rows = SpectrumRows(dtype, method)
    for block in checked_blocks(blocks):
        rows.add(block)
    return rows.part()


class _Triangle:
    """Keep [R; new rows] in one buffer, column by column as LAPACK wants it: its QR is in place."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.width = like.size(1)
        self.buffer = like.new_empty(self.width, 2 * self.width, dtype=dtype).t()
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

    def matrix(self) -> Tensor:
        if self.filled > self.width:
            self.buffer[self.filled :] = 0  # rows of zeros change no singular value
            self._reduce()
        return self.buffer[: self.filled].clone()


def whole_spectrum(parts: Sequence[SpectrumPart]) -> Spectrum:
    """Return the spectrum of all rows from the parts of one matrix, of one dtype and method."""
    rows, dtype, method = sum(part.rows for part in parts), parts[0].dtype, parts[0].method
    if rows == 1:
        raise ValueError("a single row always has rank 1: collect more contexts")
    matrices = [part.matrix.to(parts[0].matrix.device) for part in parts]
    if method == "gram":
        gram = sum(matrices[1:], matrices[0])
        values = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()
    else:
        one = len(matrices) == 1
        whole = matrices[0] if one else _collected(matrices, dtype, "tsqr").matrix
        values = torch.linalg.svdvals(whole).double()
    matrix_dtype = max((part.matrix_dtype for part in parts), key=_resolution)
    shape = (rows, matrices[0].size(1))
    values = values[: min(shape)]
    largest = float(values[0])
    reliable = press_tolerance(largest, shape, max(matrix_dtype, dtype, key=_resolution))
    if method == "gram":
        reliable = max(RELIABLE * largest, press_tolerance(largest, shape, matrix_dtype))
    return Spectrum(values, shape, dtype, method, matrix_dtype, reliable)


def _resolution(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def press_tolerance(largest: float, shape: tuple[int, int], dtype: torch.dtype) -> float:
    """Return ½ √(m + n + 1) σ_max eps(dtype) for a matrix m × n   (Press et al. 2007, §2.6)."""
    return 0.5 * math.sqrt(shape[0] + shape[1] + 1) * largest * torch.finfo(dtype).eps


def press_rank(singular_values: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Count the singular values above ½ √(m + n + 1) σ_max eps(dtype), for a matrix m × n.

    Press et al. 2007, as Yang et al. 2018 and Parthiban et al. 2021 use it, with eps of float32.
    State dtype, the precision of the matrix and of its decomposition, with the rank.
    """
    s = _checked(singular_values)
    return int((s > press_tolerance(float(s.max()), shape, dtype)).sum())


def effective_rank(singular_values: Tensor, eps: float) -> int:
    """Return the least k with Σ_{i≤k} σ_i² ≥ (1 − ε) Σ_i σ_i²   (Parthiban et al. 2021), or 0."""
    if not 0 < eps < 1:
        raise ValueError(f"eps must lie in (0, 1), got {eps}")
    squares = _checked(singular_values).sort().values.square()
    left_out = squares.cumsum(0)  # adds the small ones first, to keep all digits for a small ε
    return len(squares) - int((left_out <= eps * left_out[-1]).sum())


def spectral_entropy(singular_values: Tensor) -> float:
    """Return H = −Σ_i p_i log p_i in nats, p_i = σ_i / Σ_j σ_j.

    e^H is the effective rank of Roy and Vetterli 2007, between 1 and n; log n − H is the
    divergence of p from a flat spectrum, which Godey et al. 2024 follow along training.
    """
    s = _checked(singular_values)
    if not s.any():
        raise ValueError("all singular values are 0: the spectrum has no entropy")
    return float(torch.special.entr(s / s.sum()).sum())


def spectral_decay(singular_values: Tensor, last: int | None = None) -> float:
    """Return α of the power law σ_i² ∝ i^−α, by least squares of log σ_i² on log i.

    Stringer et al. 2019 and Agrawal et al. 2022 (α-ReQ) use this exponent; 0 is a flat spectrum.

    The line is fitted to i = 1, …, last, of n ≥ 2; no value is 0 there.
    """
    s = _checked(singular_values).sort(descending=True).values
    last = len(s) if last is None else last
    if not 1 < last <= len(s):
        raise ValueError(f"last must satisfy 1 < last ≤ {len(s)}, got {last}")
    part = s[:last]
    if part[-1] == 0:
        raise ValueError(
            f"singular value {1 + int((part > 0).sum())} is 0, which no power law can fit: set "
            "last, e.g. to the Press rank"
        )
    x = torch.arange(1, last + 1, dtype=s.dtype).log()
    x = x - x.mean()
    return -float((x * part.square().log()).sum() / x.square().sum())


def _checked(singular_values: Tensor) -> Tensor:
    s = torch.as_tensor(singular_values).detach().double().cpu()
    if not s.numel() or not (s.isfinite() & (s >= 0)).all():
        raise ValueError("singular_values: none, or an entry is NaN, infinite or negative")
    return s
