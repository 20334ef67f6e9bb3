"""Hold the learned numbers of a pointwise function for the kernels, and sum their gradients.

Programs run in any order, but sums are the same in each run. MultiMax has few numbers: a program
stores its own sums. PLIF has 10^5: all programs add to one sum for each, in integers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.kernels.triton.tiles import FAR, REST

# Bits of the largest sum: one of 64 is the sign, one stays free.
BITS = 62
# Largest log-sum-exp whose z-loss fits the integer sums of PLIF.
MOST_NORM = 2.0**16


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
