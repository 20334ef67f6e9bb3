"""Run the passes in Triton kernels; an empty chunk starts none.

Chunks and their values have contiguous rows; results are written into the tensors given for them.
"""

from __future__ import annotations

import subprocess
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from highrank_plugins.losses.autograd import products_add_in_float32
from highrank_plugins.losses.kernels.compiled import INSTEAD, CompiledKernels, Untrusted
from highrank_plugins.losses.kernels.torch import write_posterior
from highrank_plugins.losses.kernels.triton import tiles
from highrank_plugins.losses.kernels.triton.mixture import mixture_kernel
from highrank_plugins.losses.kernels.triton.softmax import gradient_kernel, softmax_kernel
from highrank_plugins.losses.kernels.triton.tree import tree_backward_kernel, tree_forward_kernel
from highrank_plugins.losses.plan import (
    ClassWeights,
    KernelFunction,
    LossPlan,
    MixtureBlock,
    Named,
    Scores,
    SoftmaxBlock,
    TreeBlock,
)

WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}
# those whose products run on tensor cores
GATED_DTYPES = {torch.bfloat16, torch.float16}
PLAIN = ClassWeights()


class TritonKernels(CompiledKernels):
    """Run kernels on chunks in the compute dtype; a chunk is read twice and written once."""

    pads_rows = True
    impl = "triton"

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, compute: torch.dtype) -> None:
        super().__init__(plan, tensors, sums, compute)
        head = plan.head
        self.chunk_dtype = compute
        self.computes_gates = (
            compute in GATED_DTYPES
            and (plan.features.is_cpu or products_add_in_float32(plan.features.device))
            and getattr(head, "components", 1) <= tiles.GATED_COMPONENTS
            and getattr(head, "frequent", 0) % tiles.GATED_CLASSES == 0
            and getattr(head, "gate_dim", 0) <= tiles.GATED_HIDDEN
        )
        if self.pairs is not None and self.function.family == "plif":
            self.tables: tiles.LearnedNumbers = tiles.CellSums(
                self.pairs, self.sums_tables, *self.function.numbers
            )
        else:
            self.tables = tiles.LearnedNumbers(self.pairs, self.sums_tables)

    def knows(self, function: KernelFunction | None) -> bool:
        head = self.plan.head
        # whether a thread cannot hold all components and the gradients of f's numbers
        is_crowded = (
            function is not None
            and bool(function.tables)
            and head.fused.applies_function_to_components
            and getattr(head, "components", 1) > tiles.LEARNED_COMPONENTS
        )
        return super().knows(function) and not is_crowded  # else torch computes f

    def version(self) -> str:
        return f"triton {triton.__version__}"

    def finish(self) -> None:
        if self.tables.totals is not None:
            self.add_table_gradients(self.tables.totals)

    def run_softmax(
        self, block: SoftmaxBlock, bias_M: Tensor | None, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> None:  # fmt: skip
        if log_probs is not None:  # scores alone
            block, scores = block._replace(scale_N=None), Scores(scores.nll_N)
        self._softmax(block, bias_M, scores, None, log_probs)

    def run_mixture(
        self, block: MixtureBlock, bias_M: Tensor | None, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Fill the scores, and write gradients: no token underflows.

        The steps are: log-sum-exps of all rows; the posterior of the components [N, K], by torch;
        gradients. Weights and correct tokens need the mixture of every class. Their kernel works
        in the log domain, and the mixture is never stored.
        """
        plan, scale_N, log_prior_NK = self.plan, block.scale_N, block.log_prior_NK
        rows = block.logits_NKM.flatten(0, 1)
        nll_NK = torch.empty_like(log_prior_NK)
        norms_NK2 = log_prior_NK.new_empty(*log_prior_NK.shape, 2)
        plain = SoftmaxBlock(rows, block.target_N, None, PLAIN)
        self._softmax(plain, bias_M, Scores(nll_NK), norms_NK2)
        log_norm_NK = norms_NK2.sum(-1) if plan.z_loss else None
        joint_NK = log_prior_NK - nll_NK
        log_likelihood_N = joint_NK.logsumexp(-1)
        torch.neg(log_likelihood_N, out=scores.nll_N)
        if log_norm_NK is not None and scores.square_norm_N is not None:
            scores.square_norm_N.copy_(log_norm_NK.square().sum(-1))
        weighted = plan.smooth or plan.soft is not None
        smoothed = scale_N is not None and weighted and log_probs is None
        if weighted or plan.accuracy or plan.entropy:
            self._mixture(block, norms_NK2, scores, smoothed, log_probs)
        if scale_N is not None and log_probs is None:
            scale_N1 = scale_N.unsqueeze(-1)
            if smoothed:
                block.grad_prior_NK.mul_(scale_N1).neg_()
            else:
                write_posterior(joint_NK, log_likelihood_N, scale_N1, block)
                norm_weight = None
                if log_norm_NK is not None:
                    norm_weight = 2 * plan.z_loss * scale_N1 * log_norm_NK
                self._gradient(block, norms_NK2, norm_weight)

    def tree_forward(self, tree: TreeBlock, out_NS: Tensor) -> None:
        """Write Σ_j π_j leaf_j into `out`; leaves and gates stay as they are."""
        self._tree(tree_forward_kernel, tree, out_NS)

    def tree_backward(self, tree: TreeBlock, grad_NS: Tensor) -> None:
        self._tree(tree_backward_kernel, tree, grad_NS)

    def _tree(self, kernel: Any, tree: TreeBlock, mixed: Tensor) -> None:
        leaves, gates, product = tree
        rows, components, classes = leaves.shape
        inputs, weights, stride, width, from_memory = None, None, 0, 0, True
        tile = tiles.tree_tile(components, classes, self.wide.itemsize // 4)
        if product is not None:
            inputs, weights, from_memory = product
            stride, width = inputs.stride(0), weights.size(1)
            tile = tiles.gated_tree_tile(components)
        launch(
            kernel, (*_grid(rows, tile), -(-classes // (tile.columns * tile.span))),
            leaves, *leaves.stride()[:2], gates, gates.stride(1), gates.stride(0),
            inputs, stride, weights,
            mixed, mixed.stride(0), rows, classes, components, WIDE[self.wide], from_memory, width,
            ROWS=tile.rows, COLUMNS=tile.columns, SPAN=tile.span, num_warps=tile.warps,
        )  # fmt: skip

    def _softmax(
        self, block: SoftmaxBlock, bias_M: Tensor | None, scores: Scores, norms: Tensor | None,
        log_probs: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Fill the scores of values [rows, M]; with a factor [rows], values become their gradient.

        A target counts for rows / N rows.
        """
        values, target_N, factor, weights, weight_NM = block
        rows, classes = values.shape
        tile = tiles.softmax_tile(classes, self.tables.totals is not None and factor is not None)
        nll, *others = scores
        found = self.tables.sums(_grid(rows, tile)[0], factor, weights.z)
        launch(
            softmax_kernel, _grid(rows, tile),
            values, values.stride(0), bias_M, target_N, factor, weight_NM, log_probs,
            nll, norms, *others, self.tables.pairs, found, rows, classes, self._width(values),
            rows // max(1, len(target_N)), self._constant(), *weights,
            ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        self.tables.add(found)

    def _gradient(self, block: MixtureBlock, norms: Tensor, norm_weight: Tensor | None) -> None:
        """Turn values [N, K, M] into their gradient, given their log-sum-exp [N, K, 2].

        With z-loss `norm_weight` [N, K] is another factor of P.
        """
        values, target_N, factor = block.logits_NKM.flatten(0, 1), block.target_N, block.factor_NK
        rows, classes = values.shape
        tile = tiles.softmax_tile(classes, self.tables.totals is not None)
        found = self.tables.sums(_grid(rows, tile)[0], factor, norm_weight)
        launch(
            gradient_kernel, _grid(rows, tile),
            values, values.stride(0), target_N, factor, norm_weight, norms, self.tables.pairs,
            found, rows, classes, self._width(values), rows // max(1, len(target_N)),
            self._constant(), ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        self.tables.add(found)

    def _mixture(
        self, block: MixtureBlock, norms: Tensor, scores: Scores, smoothed: bool,
        log_probs: Tensor | None,
    ) -> None:  # fmt: skip
        """Fill in the scores of the mixture of values [N, K, M]; if `smoothed` also the gradient.

        Of log π it is divided by the factor.
        """
        values = block.logits_NKM
        tokens, components, classes = values.shape
        weights, tables = self.plan.class_weights, self.tables
        factor_N, share_NK = (block.scale_N, block.grad_prior_NK) if smoothed else (None, None)
        found = tables.sums(tokens, factor_N, components * weights.z)
        tile = tiles.mixture_tile(
            components, classes, 0 if found is None else tables.numbers_per_column
        )
        launch(
            mixture_kernel, (tokens,),
            values, *values.stride()[:2],
            norms, block.log_prior_NK, block.target_N, factor_N, block.weight_NM, log_probs,
            scores.smooth_sum_N, share_NK, scores.correct_N, scores.entropy_N, tables.pairs, found,
            classes, self._width(values.flatten(0, 1)), components, self._constant(),
            weights.target, weights.smoothing, weights.z,
            COLUMNS=tile.columns, num_warps=tile.warps,
        )  # fmt: skip
        tables.add(found)

    def _constant(self) -> tuple[str | float, ...]:
        """Return f as a kernel takes it: family, numbers and, for PLIF, the number of cells."""
        family, numbers, _ = self.function
        pairs = self.tables.pairs
        cells = (len(pairs) - 1,) if family == "plif" and pairs is not None else ()
        return (family, *numbers, *cells)

    def _width(self, values: Tensor) -> int | None:
        """Return the numbers that each row of a chunk has memory for; None if the classes fill it.

        Values that torch has computed are no chunk. With one row, their stride may be any number.
        PLIF's look-ups outweigh its loads: wide ones save nothing, and spill registers in float32.
        """
        stride = values.stride(0)
        is_wide = not self.by_torch and self.function.family != "plif"
        return stride if is_wide and values.size(1) < stride else None


def launch(kernel: Any, grid: tuple[int, ...], values: Tensor, *others: Any, **tile: int) -> None:
    """Start a kernel, unless values are none or on device meta, which counts a peak."""
    if values.is_meta or not values.numel():
        return
    try:
        kernel[grid](values, *others, **tile)
    except (TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        if isinstance(error, RuntimeError) and ("CUDA" in str(error) or "HIP" in str(error)):
            raise  # of the GPU, such as too little memory
        why = str(error).strip(" ^\n").rpartition("\n")[2].strip() or type(error).__name__
        raise Untrusted(
            f"impl: 'triton' {triton.__version__} cannot compile {kernel.fn.__name__} ({why}); "
            f"install a C compiler, or name it in CC, or install another triton, {INSTEAD}"
        ) from error


def _grid(rows: int, tile: tiles.Tile) -> tuple[int]:
    return (-(-rows // tile.rows),)
