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

from highrank_plugins.losses.kernels import triton as kernels
from highrank_plugins.losses.kernels.compiled import CompiledKernels, KernelInput, empty_scores
from highrank_plugins.losses.kernels.torch import (
    MixtureBlock,
    RecomputeLogits,
    SoftmaxBlock,
    TreeBlock,
    write_posterior,
)
from highrank_plugins.losses.kernels.triton import FAMILIES, check_components, tiles
from highrank_plugins.losses.kernels.triton.learned import CellSums, LearnedNumbers
from highrank_plugins.losses.kernels.triton.mixture import mixture_kernel
from highrank_plugins.losses.kernels.triton.softmax import gradient_kernel, softmax_kernel
from highrank_plugins.losses.kernels.triton.tiles import (
    Tile,
    gated_tree_tile,
    mixture_tile,
    softmax_tile,
    tree_tile,
)
from highrank_plugins.losses.kernels.triton.tree import tree_backward_kernel, tree_forward_kernel
from highrank_plugins.losses.plan import ClassWeights, LossPlan, Named, Scores

WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}
# those whose products run on tensor cores
GATED_DTYPES = {torch.bfloat16, torch.float16}
PLAIN = ClassWeights()


class TritonKernels(CompiledKernels):
    """Run kernels on chunks in the compute dtype; a chunk is read twice and written once."""

    pads_rows = True
    families = FAMILIES

    def __init__(self, plan: LossPlan, tensors: Named, *others: Any) -> None:
        super().__init__(plan, tensors, *others)
        check_components(plan.head)
        self.chunk_dtype = self.compute
        self.computes_gates = (
            self.compute in GATED_DTYPES
            and multiplies_quickly(self.plan.features.device)
            and getattr(self.plan.head, "components", 1) <= tiles.GATED_COMPONENTS
            and getattr(self.plan.head, "frequent", 0) % tiles.GATED_CLASSES == 0
            and getattr(self.plan.head, "gate_dim", 0) <= tiles.GATED_HIDDEN
        )
        if self._crowds_registers():
            self.function = None  # torch computes f
        tables = () if self.function is None else self.function.tables
        self.table_names = [f"pointwise.{name}" for name in tables]
        self.tables = NO_NUMBERS
        if self.function is not None and tables:
            pairs = torch.stack([tensors[name].to(self.wide) for name in self.table_names], -1)
            wanted = any(name in self.sums for name in self.table_names)
            if self.function.family == "plif":
                self.tables = CellSums(pairs, wanted, *self.function.numbers)
            else:
                self.tables = LearnedNumbers(pairs, wanted)

    def _crowds_registers(self) -> bool:
        """Whether a thread cannot hold all components and the gradients of f's numbers."""
        head = self.plan.head
        return (
            self.function is not None
            and bool(self.function.tables)
            and head.fused.applies_function_to_components
            and getattr(head, "components", 1) > tiles.LEARNED_COMPONENTS
        )

    def finish(self) -> None:
        if self.tables.totals is not None:
            for i, name in enumerate(self.table_names):
                if name in self.sums:
                    self.sums[name].add_(self.tables.totals[:, i])

    def run_softmax(self, given: KernelInput, block: SoftmaxBlock, scores: Scores) -> None:
        _softmax(
            given, given.values, block.target_N, block.factor_N, block.weights, scores, None,
            self.tables,
        )  # fmt: skip

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        """Return scores and write gradients, see `Kernels.mixture_pass`.

        The steps are: log-sum-exps of all rows; the posterior of the components [N, K], by torch;
        gradients. Smoothing and correct tokens need the mixture of every class. Their kernel
        works in the log domain: nothing underflows, and the mixture is never stored.
        """
        plan, scale_N = self.plan, block.scale_N
        target_N, log_prior_NK = block.target_N.contiguous(), block.log_prior_NK.contiguous()
        given = KernelInput.of(self, block.logits_NKM, bias_M)
        rows = given.values.flatten(0, 1)
        nll_NK = torch.empty_like(log_prior_NK)
        norms_NK2 = log_prior_NK.new_empty(*log_prior_NK.shape, 2)
        only_nll = Scores(nll_NK)
        _softmax(given, rows, target_N, None, PLAIN, only_nll, norms_NK2, self.tables)
        log_norm_NK = norms_NK2.sum(-1) if plan.z_loss else None
        joint_NK = log_prior_NK - nll_NK
        log_likelihood_N = joint_NK.logsumexp(-1)
        scores = empty_scores(self, log_prior_NK)._replace(
            nll_N=-log_likelihood_N,
            square_norm_N=None if log_norm_NK is None else log_norm_NK.square().sum(-1),
        )
        smoothed = scale_N is not None and plan.smooth
        if plan.smooth or plan.accuracy or plan.entropy:
            _mixture(
                given, target_N, norms_NK2, log_prior_NK, scale_N if smoothed else None,
                plan.class_weights, scores, block.grad_prior_NK if smoothed else None, self.tables,
            )  # fmt: skip
        if scale_N is not None:
            scale_N1 = scale_N.unsqueeze(-1)
            if smoothed:
                block.grad_prior_NK.mul_(scale_N1).neg_()
            else:
                write_posterior(joint_NK, log_likelihood_N, scale_N1, block)
                norm_weight = None
                if log_norm_NK is not None:
                    norm_weight = 2 * plan.z_loss * scale_N1 * log_norm_NK
                factor_NK = block.factor_NK
                _gradient(given, rows, target_N, norms_NK2, factor_NK, norm_weight, self.tables)
            given.write_gradient(block.logits_NKM)
        return scores

    def tree_forward(self, tree: TreeBlock, out_NS: Tensor) -> None:
        """Write Σ_j π_j leaf_j into `out`; leaves and gates stay as they are."""
        self._tree(tree_forward_kernel, tree, out_NS)

    def tree_backward(self, tree: TreeBlock, grad_NS: Tensor) -> None:
        self._tree(tree_backward_kernel, tree, grad_NS)

    def _tree(self, kernel: Any, tree: TreeBlock, mixed: Tensor) -> None:
        leaves, gates, product = tree
        rows, components, classes = leaves.shape
        if leaves.numel() == 0:
            return
        inputs, weights, stride, width, from_memory = None, None, 0, 0, True
        tile = tree_tile(components, classes, self.wide.itemsize // 4)
        if product is not None:
            inputs, weights, from_memory = product
            stride, width = inputs.stride(0), weights.size(1)
            tile = gated_tree_tile(components)
        launch(
            kernel, (*_grid(rows, tile), -(-classes // (tile.columns * tile.span))),
            leaves, *leaves.stride()[:2], gates, gates.stride(1), gates.stride(0),
            inputs, stride, weights,
            mixed, mixed.stride(0), rows, classes, components, WIDE[self.wide], from_memory, width,
            ROWS=tile.rows, COLUMNS=tile.columns, SPAN=tile.span, num_warps=tile.warps,
        )  # fmt: skip


NO_NUMBERS = LearnedNumbers()


def multiplies_quickly(device: torch.device) -> bool:
    """Whether Triton's products run on tensor cores: from sm_80 on. Older GPUs spill registers."""
    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def launch(kernel: Any, grid: tuple[int, ...], values: Tensor, *others: Any, **tile: int) -> None:
    """Start a kernel on values; leave values on device meta, which counts a peak, as they are."""
    if values.is_meta:
        return
    try:
        kernel[grid](values, *others, **tile)
    except (TritonError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        if isinstance(error, RuntimeError) and ("CUDA" in str(error) or "HIP" in str(error)):
            raise  # of the GPU, such as too little memory
        why = str(error).strip(" ^\n").rpartition("\n")[2].strip() or type(error).__name__
        raise kernels.CannotCompile(
            f"impl: 'triton' {triton.__version__} cannot compile {kernel.fn.__name__} ({why}); "
            f"install a C compiler, or name it in CC, or install another triton, {kernels.INSTEAD}"
        ) from error


def _softmax(
    given: KernelInput,
    values: Tensor,
    target_N: Tensor,
    factor: Tensor | None,
    weights: ClassWeights,
    scores: Scores,
    norms: Tensor | None,
    tables: LearnedNumbers,
) -> None:
    """Fill the scores of values [rows, M]; with `factor` [rows], values become their gradient.

    A target counts for rows / N rows.
    """
    rows, classes = values.shape
    if rows == 0:
        return
    tile = softmax_tile(classes, tables.crowded and factor is not None)
    nll, *others = scores
    found = tables.sums(_grid(rows, tile)[0], factor, weights.z)
    launch(
        softmax_kernel, _grid(rows, tile),
        values, values.stride(0), given.bias_M, target_N, factor,
        nll, norms, *others, tables.pairs, found, rows, classes, _width(given, values),
        rows // len(target_N), _constant(given, tables), *weights,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    tables.add(found)


def _gradient(
    given: KernelInput,
    values: Tensor,
    target_N: Tensor,
    norms: Tensor,
    factor: Tensor,
    norm_weight: Tensor | None,
    tables: LearnedNumbers,
) -> None:
    """Turn values [rows, M] into their gradient, given their log-sum-exp [rows, 2].

    With z-loss `norm_weight` [rows] is another factor of P.
    """
    rows, classes = values.shape
    if rows == 0:
        return
    tile = softmax_tile(classes, tables.crowded)
    found = tables.sums(_grid(rows, tile)[0], factor, norm_weight)
    launch(
        gradient_kernel, _grid(rows, tile),
        values, values.stride(0), target_N, factor, norm_weight, norms, tables.pairs, found,
        rows, classes, _width(given, values), rows // len(target_N), _constant(given, tables),
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    tables.add(found)


def _mixture(
    given: KernelInput,
    target_N: Tensor,
    norms_NK2: Tensor,
    log_prior_NK: Tensor,
    factor_N: Tensor | None,
    weights: ClassWeights,
    scores: Scores,
    share_NK: Tensor | None,
    tables: LearnedNumbers,
) -> None:
    """Fill in the scores of the mixture of values [N, K, M]; with `share` also the gradient."""
    tokens, components, classes = given.values.shape
    if tokens == 0:
        return
    found = tables.sums(tokens, factor_N, components * weights.z)
    tile = mixture_tile(components, classes, 0 if found is None else tables.numbers_per_column)
    launch(
        mixture_kernel, (tokens,),
        given.values, given.values.stride(0), given.values.stride(1),
        norms_NK2, log_prior_NK, target_N, factor_N,
        scores.smooth_sum_N, share_NK, scores.correct_N, scores.entropy_N, tables.pairs, found,
        classes, _width(given, given.values.flatten(0, 1)), components, _constant(given, tables),
        weights.target, weights.smoothing, weights.z,
        COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip
    tables.add(found)


def _constant(given: KernelInput, tables: LearnedNumbers) -> tuple[str | float, ...]:
    """Return f as a kernel takes it: family, numbers and, for PLIF, the number of cells."""
    family, numbers, _ = given.function
    cells = (len(tables.pairs) - 1,) if family == "plif" and tables.pairs is not None else ()
    return (family, *numbers, *cells)


def _width(given: KernelInput, values: Tensor) -> int | None:
    """Return the numbers that each row of a chunk has memory for; None if the classes fill it.

    Values that torch has computed are no chunk. With one row, their stride may be any number.
    PLIF's look-ups outweigh its loads: wide ones save nothing, and spill registers in float32.
    """
    stride = values.stride(0)
    is_wide = given.pullback is None and given.function.family != "plif"
    return stride if is_wide and values.size(1) < stride else None


def _grid(rows: int, tile: Tile) -> tuple[int]:
    return (-(-rows // tile.rows),)
