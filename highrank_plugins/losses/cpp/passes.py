"""What the losses with compiled CPU kernels share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.cpp import launch
from highrank_plugins.losses.fused.base import Scores
from highrank_plugins.losses.fused.kernel_passes import KernelPasses
from highrank_plugins.losses.fused.values import Values
from highrank_plugins.losses.plan import chunk_ranges


class CppPasses(KernelPasses):
    """Mixin before a fused loss: its passes are compiled kernels, which also add the bias and, for
    its gradient, the rows of a chunk while they are in cache."""

    bias_in_pass = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # with a function that no kernel knows, torch has the last word on the gradient
        self.knows_function = self.plan.head.pointwise.bent_line is not None
        self.columns: Tensor | None = None
        if self.knows_function and "bias" in self.sums:
            threads = torch.get_num_threads()
            self.columns = torch.zeros(threads, self.plan.head.num_classes, dtype=self.wide)

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        """A kernel goes row by row; what torch does around it wants blocks."""
        if self.knows_function:
            return chunk_ranges(0, rows, rows)
        return super().row_blocks(rows, floats_per_row)

    def softmax_kernel(
        self, values: Values, target: Tensor, factor: Tensor | None, scores: Scores
    ) -> None:
        launch.softmax(
            values.tensor,
            target,
            values.bent_line,
            self.weights(),
            bias=values.bias,
            factor=factor,
            nll=scores.nll,
            smooth_sum=scores.smooth_sum,
            hits=scores.hits,
            columns=self.columns,
        )

    def add_columns(self, name: str, grad: Tensor, factor: Tensor | None) -> None:
        """Nothing where the pass has done it."""
        if self.columns is None:
            super().add_columns(name, grad, factor)

    def finish(self) -> None:
        super().finish()
        if self.columns is not None:
            self.sums["bias"].add_(self.columns.sum(0))
