"""Define the inputs and outputs that kernels in C++ and Triton share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

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
from highrank_plugins.losses.plan import (
    KernelFunction,
    LossPlan,
    MixtureBlock,
    Named,
    Scores,
    SoftmaxBlock,
)
from highrank_plugins.own_layers.ours import same_form

# functions that the kernels compute, see `KernelFunction`; function.cpp has the same order
FAMILIES = ("identity", "gss", "logistic", "multimax", "plif")
IDENTITY = KernelFunction("identity")
INSTEAD = "or choose impl='fused' (--head-loss fused)"


class Untrusted(UserError):
    """Report kernels that are wrong here, or that do not compile, with a remedy."""


class CompiledKernels(Kernels):
    """Apply the factor of a row in the kernels; torch computes functions that they do not know."""

    rotates_leaves = False
    impl: ClassVar[str]
    columns: Tensor | None = None  # [threads, M], the bias's gradient of the rows of each thread

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, compute: torch.dtype) -> None:
        super().__init__(plan, tensors, sums, compute)
        self.applies_factor = True
        function = plan.head.pointwise.kernel_function
        self.by_torch = not self.knows(function)  # whether torch computes f, and the kernels none
        self.function: KernelFunction = IDENTITY if self.by_torch else function
        self.table_names = [f"pointwise.{n}" for n in self.function.tables]
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
        if not self.by_torch and self.plan.soft is None:
            return chunk_ranges(0, rows, rows)
        return super().row_blocks(rows, floats_per_row)

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        own = block._replace(target_N=block.target_N.contiguous())
        scored = self._around if self.by_torch else self._scored
        return scored(self.run_softmax, own, bias_M)[0]

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        own = block._replace(
            target_N=block.target_N.contiguous(), log_prior_NK=block.log_prior_NK.contiguous()
        )
        scored = self._around if self.by_torch else self._scored
        scores, lost = scored(self.run_mixture, own, bias_M)
        if lost is not None and len(lost):
            recompute_in_log_domain(self, lost, scores, own, recompute_logits)
            if self.columns is not None:
                self.columns[0].add_(block.logits_NKM[lost].sum((0, 1)))
        return scores

    def _scored(
        self, run: Callable[..., Any], block: Any, bias_M: Tensor | None
    ) -> tuple[Scores, Any]:
        """Return the scores of a block, and what its kernels return."""
        scores = self._empty_scores(block[0])
        if self.plan.soft is not None:
            return self._weighted(run, block, bias_M, scores)
        return scores, run(block, bias_M, scores)

    def _around(
        self, run: Callable[..., Any], block: Any, bias_M: Tensor | None
    ) -> tuple[Scores, Any]:
        """Return the same where torch computes f before the kernels, and its gradient after."""
        logits, *others = block
        wide = logits.to(self.wide)
        if bias_M is not None:
            wide.add_(bias_M)
        values, pullback = self.vjp(wide)
        values = same_form(self.plan.head.pointwise, values, wide).contiguous()
        found = self._scored(run, type(block)(values, *others), None)
        if block.scale_N is not None:
            copy_unless_same(pullback(values), logits)
        return found

    def _weighted(
        self, run: Callable[..., Any], block: Any, bias_M: Tensor | None, scores: Scores
    ) -> tuple[Scores, Any]:
        """Return the same for a `targets.Target`, which makes scores and weights of log P."""
        values, rows_N = block[0], block.target_N
        block = block._replace(target_N=torch.zeros_like(rows_N, device=values.device))
        log_probs_NM = values.new_empty(len(values), values.size(-1), dtype=self.wide)
        result = run(block, bias_M, scores, log_probs_NM)
        wanted = block.scale_N is not None
        found, weight_NM = self.weighed(log_probs_NM, rows_N, wanted)
        if wanted or self.plan.z_loss:
            weight_NM = weight_NM.to(self.wide).contiguous()
            result = run(block._replace(weight_NM=weight_NM), bias_M, scores)
        return found._replace(square_norm_N=scores.square_norm_N), result

    def run_softmax(
        self, block: SoftmaxBlock, bias_M: Tensor | None, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Fill the scores, with a scale also the gradient; or only `log_probs` [n, M]: log P."""
        raise NotImplementedError

    def run_mixture(
        self, block: MixtureBlock, bias_M: Tensor | None, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Do the same with mixtures; return the numbers of tokens that underflow, if any do."""
        raise NotImplementedError

    def _empty_scores(self, rows: Tensor) -> Scores:
        """Return unwritten scores, one for each of the rows."""
        plan, hard = self.plan, self.plan.soft is None
        wanted = {"nll_N": True, "smooth_sum_N": plan.smooth, "correct_N": plan.accuracy and hard,
                  "entropy_N": plan.entropy and hard, "square_norm_N": plan.z_loss > 0}  # fmt: skip
        dtypes = dict.fromkeys(wanted, self.wide) | {"correct_N": torch.bool}
        names = (name for name, want in wanted.items() if want)
        return Scores(**{name: rows.new_empty(len(rows), dtype=dtypes[name]) for name in names})
