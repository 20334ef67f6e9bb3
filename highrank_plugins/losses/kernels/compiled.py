"""Define the inputs and outputs that kernels in C++ and Triton share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import chunk_ranges
from highrank_plugins.losses.kernels.torch import Kernels, SoftmaxBlock, copy_unless_same
from highrank_plugins.losses.own_layers import same_form
from highrank_plugins.losses.plan import KernelFunction, Scores

IDENTITY = KernelFunction("identity")


class CompiledKernels(Kernels):
    """Apply the factor of a row in the kernels, which know some pointwise functions.

    torch computes any other function, and the last step of its gradient.
    """

    families: ClassVar[tuple[str, ...]]  # functions that the kernels know, see `KernelFunction`

    def __init__(self, *batch: Any) -> None:
        super().__init__(*batch)
        self.applies_factor = True
        function = self.plan.head.pointwise.kernel_function
        known = function is not None and function.family in self.families
        self.function = function if known else None

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        """Yield all rows at once, or the blocks that torch's part of the work wants."""
        if self.function is not None:
            return chunk_ranges(0, rows, rows)
        return super().row_blocks(rows, floats_per_row)

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        """Return scores and write the gradient, see `Kernels.softmax_pass`."""
        given = KernelInput.of(self, block.logits_NM, bias_M)
        scores = empty_scores(self, block.logits_NM)
        self.run_softmax(given, block._replace(target_N=block.target_N.contiguous()), scores)
        if block.factor_N is not None:
            given.write_gradient(block.logits_NM)
        return scores

    def leaf_order(self, components: int) -> list[int]:
        return list(range(components))

    def run_softmax(self, given: KernelInput, block: SoftmaxBlock, scores: Scores) -> None:
        """Fill the scores of the values; with a factor the values become their gradient."""
        raise NotImplementedError


class KernelInput(NamedTuple):
    """Hold the values that a kernel overwrites with their gradient, and the bias it adds.

    The values are the logits if the kernel computes f itself, else f(z), computed by torch.
    """

    values: Tensor
    bias_M: Tensor | None
    function: KernelFunction  # the f that the kernel applies
    pullback: Callable[[Tensor], Tensor] | None  # from that gradient to the logits'; None: the same

    @classmethod
    def of(cls, kernels: CompiledKernels, logits: Tensor, bias_M: Tensor | None) -> KernelInput:
        """Return the logits themselves or, where no kernel knows f, f(z), widened."""
        if kernels.function is not None:
            return cls(logits, bias_M, kernels.function, None)
        wide = logits.to(kernels.wide)
        if bias_M is not None:
            wide.add_(bias_M)
        values, pullback = kernels.vjp(wide)
        same_form(kernels.plan.head.pointwise, values, wide)
        return cls(values.contiguous(), None, IDENTITY, pullback)

    def write_gradient(self, logits: Tensor) -> None:
        """Write the gradient of the logits into them, once `values` is its own."""
        if self.pullback is not None:
            copy_unless_same(self.pullback(self.values), logits)


def empty_scores(kernels: Kernels, rows: Tensor) -> Scores:
    """Return unwritten scores, one for each of the rows."""
    plan, wide = kernels.plan, kernels.wide
    wanted = (True, plan.smooth, plan.accuracy, plan.entropy, plan.z_loss > 0)
    dtypes = (wide, wide, torch.bool, wide, wide)
    empty: list[Any] = [
        rows.new_empty(len(rows), dtype=dtype) if want else None
        for want, dtype in zip(wanted, dtypes, strict=True)
    ]
    return Scores(*empty)
