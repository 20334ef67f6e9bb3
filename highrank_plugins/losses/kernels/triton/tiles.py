"""Prepare a launch: how much of a chunk a program reads at a time, and what f has learned.

Programs run in any order, but sums of gradients are the same in each run. MultiMax has few numbers:
a program stores its own sums. PLIF has 10^5: all programs add to one sum for each, in integers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Numbers in one tile, a power of two like every size here: eight warps, 16 numbers per thread.
SIZE = 4096
# Largest number of columns of one tile. Narrower rows share a program.
COLUMNS = 4096
# Largest number of rows that share a program: a thread holds sums and a target for each.
ROWS = 8
# Numbers in one tile of Mixtape's tree, times K: each takes about 3 K registers of a thread.
TREE_SIZE = 2048
# Largest K, times the words of a number, with which the numbers of a whole tile fit; then half.
TREE_WORDS = 16
# Rows of a tile of Mixtape's tree whose kernel also computes the gates' product; columns of that
# tile, times K; tiles of a program.
GATED_ROWS, GATED_COLUMNS, GATED_SPAN = 64, 128, 4
# Largest K, and the divisor of S, with which that kernel fits the registers of a thread: Triton
# loads rows of another length number by number, each from an address of its own.
GATED_COMPONENTS, GATED_CLASSES = 4, 16
# Largest size of the gates' hidden units with which it fits the shared memory of every GPU.
GATED_HIDDEN = 128
# Numbers of a mixture's tile that one thread holds, at three registers each; number of threads.
MIXTURE_NUMBERS = 32
MIXTURE_THREADS = 128
# The gradients of PLIF's slopes clamp z to this multiple of T.
FAR = 2**20
# The remainder of a gradient beyond PLIF's cells is summed in units this many times smaller.
REST = 2**30
# Largest number of components for which a thread sums a learned function's gradients in registers.
LEARNED_COMPONENTS = 16
# Largest number of components of a thread, by bytes of a number: with more, many numbers would not
# fit its registers, and a kernel would take minutes to compile.
COMPONENTS = {4: 32, 8: 16}

# Bits of the largest sum: one of 64 is the sign, one stays free.
BITS = 62
# Largest log-sum-exp whose z-loss fits the integer sums of PLIF.
MOST_NORM = 2.0**16


class Tile(NamedTuple):
    """Hold rows × columns, the warps that work on them, and how many tiles a program takes."""

    rows: int
    columns: int
    warps: int
    span: int = 1


def softmax_tile(classes: int, crowded: bool = False) -> Tile:
    """Return the tile for one softmax per row; `crowded` by a learned function's sums, or not."""
    size = SIZE // 4 if crowded else SIZE
    columns = min(_power_of_two(classes), COLUMNS, size)
    rows = min(max(1, size // columns), ROWS)
    return Tile(rows, columns, _warps(rows * columns, 128 if crowded else 512))


def tree_tile(components: int, classes: int, words: int = 1) -> Tile:
    """Return the tile for a tree with K leaves per class, whose numbers have 1 or 2 words."""
    leaves = _power_of_two(components)
    size = TREE_SIZE // leaves // (2 if leaves * words > TREE_WORDS else 1)
    columns = min(_power_of_two(classes), COLUMNS, max(32, size))
    rows = max(1, size // columns)
    return Tile(rows, columns, min(_warps(rows * columns, 128), 4))


def gated_tree_tile(components: int) -> Tile:
    """Return the tile for a tree whose gate logits are products, K being a power of two."""
    return Tile(GATED_ROWS, GATED_COLUMNS // components, 4, GATED_SPAN)


def mixture_tile(components: int, classes: int, sums: int = 0) -> Tile:
    """Return the tile for all components of a token, of which a thread has whole columns.

    Each has further numbers for the `sums` of a learned function.
    """
    each = max(1, min(8, MIXTURE_NUMBERS // _power_of_two(components + sums)))
    columns = min(_power_of_two(classes), COLUMNS, each * MIXTURE_THREADS)
    return Tile(1, columns, _warps(columns, 32 * each))


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def _warps(size: int, each: int) -> int:
    """Return the number of warps for a tile, from the numbers that each warp takes."""
    return min(max(size // each, 1), 8)


class LearnedNumbers:
    """Hold no or few numbers; each program stores its own sums of their gradients, in pairs."""

    def __init__(self, pairs: Tensor | None = None, wanted: bool = False) -> None:
        self.pairs = pairs  # what kernels read
        self.totals: Tensor | None = None  # [length, 2], float64; None: not wanted
        if pairs is not None and wanted:
            self.totals = torch.zeros_like(pairs, dtype=torch.float64)

    def sums(
        self, programs: int, factor: Tensor | None, norm_weight: Tensor | float | None
    ) -> Tensor | None:
        """Return memory for the sums of a launch; None unless they are wanted.

        They are if the gradients of the launch have a `factor`. A number as `norm_weight`, that of
        each row's z-loss, still lacks factor and log-sum-exps.
        """
        if self.pairs is None or self.totals is None or factor is None:
            return None
        return torch.empty(
            programs, *self.pairs.shape, dtype=self.pairs.dtype, device=self.pairs.device
        )

    @property
    def numbers_per_column(self) -> int:
        """Return the numbers that a thread holds for each column while it sums gradients."""
        return 0 if self.totals is None else 2 * self.totals.numel()

    def add(self, found: Tensor | None) -> None:
        """Add what a launch has left in the memory that `sums` returned."""
        if self.totals is not None and found is not None:
            self.totals.add_(found.sum(0, dtype=torch.float64))


class CellSums(LearnedNumbers):
    """Hold the cells of PLIF, and sum gradients in integers, so that their order does not matter.

    A unit of the integers is 2^-62 of the bound of the whole sum. For offsets within a cell it
    counts in widths D. Beyond the outer cells the unit is larger. Two more rows have the sums
    there, and in the second column what is left of each gradient, in 2^-30 of that unit. The pairs
    [Q, 2] are the slope and left value of each cell, bound and width are T and D.
    """

    def __init__(self, pairs: Tensor, wanted: bool, bound: float, width: float) -> None:
        super().__init__(pairs, wanted)
        self.pairs = torch.cat([pairs, pairs.new_zeros(1, 2)])  # the last row has the scales
        self.width = width
        self.far = 1 / (FAR * bound)  # for the scales

    def sums(
        self, programs: int, factor: Tensor | None, norm_weight: Tensor | float | None
    ) -> Tensor | None:
        if self.totals is None or self.pairs is None or factor is None:
            return None
        scale = 2.0**BITS / _bound(factor, norm_weight).to(self.pairs.dtype).clamp_min(2.0**-60)
        self.pairs[-1, 0], self.pairs[-1, 1] = scale, scale * self.far
        shape = (len(self.totals) + 2, 2)
        return torch.zeros(shape, dtype=torch.int64, device=self.pairs.device)

    @property
    def numbers_per_column(self) -> int:
        return 0 if self.totals is None else 12

    def add(self, found: Tensor | None) -> None:
        if self.totals is None or self.pairs is None or found is None:
            return
        scale, far_scale = self.pairs[-1].double()
        parts = found.double()
        near, far = parts[:-2], (parts[-2:, 0] + parts[-2:, 1] / REST) / far_scale
        self.totals[:, 0] += near[:, 0] * (self.width / scale)
        self.totals[:, 1] += near[:, 1] / scale
        self.totals[0, 0] += far[0]
        self.totals[-1, 0] += far[1]


def _bound(factor: Tensor, norm_weight: Tensor | float | None) -> Tensor:
    """Return a bound of Σ |gradient of f(z)| × 2 over all rows, whose weights add up to 2."""
    total = 4 * factor.abs().sum()
    if isinstance(norm_weight, Tensor):
        return total + 2 * norm_weight.abs().sum()
    return total * (1 + MOST_NORM * norm_weight) if norm_weight else total
