"""Define the inputs and outputs that kernels in C++ and Triton share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses.chunking import chunk_ranges
from highrank_plugins.losses.kernels.torch import (
    Kernels,
    RecomputeLogits,
    copy_unless_same,
    recompute_in_log_domain,
)
from highrank_plugins.losses.own_layers import same_form
from highrank_plugins.losses.plan import (
    KernelFunction,
    LossPlan,
    MixtureBlock,
    Named,
    Scores,
    SoftmaxBlock,
)

# functions that the kernels compute, see `KernelFunction`; function.cpp has the same order
FAMILIES = ("identity", "gss", "logistic", "multimax", "plif")
IDENTITY = KernelFunction("identity")


class Untrusted(UserError):
    """Report kernels that are wrong here, or that do not compile, with a remedy."""


class CompiledKernels(Kernels):
    """Apply the factor of a row in the kernels, which know some pointwise functions.

    torch computes any other function, and the last step of its gradient.
    """

    rotates_leaves = False
    impl: ClassVar[str]
    columns: Tensor | None = None  # [threads, M], the bias's gradient of the rows of each thread

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, compute: torch.dtype) -> None:
        super().__init__(plan, tensors, sums, compute)
        self.applies_factor = True
        function = plan.head.pointwise.kernel_function
        self.function: KernelFunction | None = function if self.knows(function) else None
        self.table_names = [f"pointwise.{n}" for n in self.function.tables] if self.function else []
        tables = [tensors[name].to(self.wide) for name in self.table_names]
        self.pairs = torch.stack(tables, -1) if tables else None  # [length, 2]
        self.sums_tables = any(name in sums for name in self.table_names)

    def version(self) -> str:
        """Return what these kernels were compiled by, or with."""
        raise NotImplementedError

    def knows(self, function: KernelFunction | None) -> bool:
        """Whether the kernels compute this function of the layer."""
        return function is not None and function.family in FAMILIES

    def add_table_gradients(self, total: Tensor) -> None:
        """Add the gradients [length, 2] of f's learned tables."""
        for name, gradient in zip(self.table_names, total.unbind(-1), strict=True):
            if name in self.sums:
                self.sums[name].add_(gradient)

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        """Yield all rows at once, or the blocks that torch's part of the work wants."""
        if self.function is not None and self.plan.soft is None:
            return chunk_ranges(0, rows, rows)
        return super().row_blocks(rows, floats_per_row)

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        """Return scores and write the gradient, see `Kernels.softmax_pass`."""
        given = KernelInput.of(self, block.logits_NM, bias_M)
        own = block._replace(logits_NM=given.values, target_N=block.target_N.contiguous())
        scores = empty_scores(self, given.values)
        if self.plan.soft is not None:
            scores, _ = self._weighted(self.run_softmax, given, own, scores)
        else:
            self.run_softmax(given, own, scores)
        if block.factor_N is not None:
            given.write_gradient(block.logits_NM)
        return scores

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        """Return scores and write gradients, see `Kernels.mixture_pass`."""
        given = KernelInput.of(self, block.logits_NKM, bias_M)
        own = block._replace(
            target_N=block.target_N.contiguous(), log_prior_NK=block.log_prior_NK.contiguous()
        )
        scores = empty_scores(self, given.values)
        if self.plan.soft is not None:
            scores, lost = self._weighted(self.run_mixture, given, own, scores)
        else:
            lost = self.run_mixture(given, own, scores)
        if block.scale_N is not None:
            given.write_gradient(block.logits_NKM)
        if lost is not None and len(lost):
            recompute_in_log_domain(self, lost, scores, own, recompute_logits)
            if self.columns is not None:
                self.columns[0].add_(block.logits_NKM[lost].sum((0, 1)))
        return scores

    def _weighted(
        self, run: Callable[..., Any], given: KernelInput, block: Any, scores: Scores
    ) -> tuple[Scores, Any]:
        """Return the scores of a `targets.Target`, and what the kernels return.

        They compute log P first, from which the target makes its scores and weights.
        """
        values, rows_N = given.values, block.target_N
        block = block._replace(target_N=torch.zeros_like(rows_N, device=values.device))
        log_probs_NM = values.new_empty(len(values), values.size(-1), dtype=self.wide)
        result = run(given, block, scores, log_probs_NM)
        wanted = (block.factor_N if isinstance(block, SoftmaxBlock) else block.scale_N) is not None
        found, weight_NM = self.weighed(log_probs_NM, rows_N, wanted)
        if wanted or self.plan.z_loss:
            weight_NM = weight_NM.to(self.wide).contiguous()
            result = run(given, block._replace(weight_NM=weight_NM), scores)
        return found._replace(square_norm_N=scores.square_norm_N), result

    def run_softmax(
        self, given: KernelInput, block: SoftmaxBlock, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Fill the scores of the values; with a factor the values become their gradient.

        With `log_probs` [n, M] only these are written: log P.
        """
        raise NotImplementedError

    def run_mixture(
        self, given: KernelInput, block: MixtureBlock, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Do the same with mixtures; return the numbers of tokens that underflow, if any do."""
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
    plan, dtypes = kernels.plan, {"correct_N": torch.bool}
    hard = plan.soft is None
    wanted = (True, plan.smooth, plan.accuracy and hard, plan.entropy and hard, plan.z_loss > 0)
    names = (name for name, want in zip(Scores._fields, wanted, strict=True) if want)
    return Scores(
        **{n: rows.new_empty(len(rows), dtype=dtypes.get(n, kernels.wide)) for n in names}
    )
