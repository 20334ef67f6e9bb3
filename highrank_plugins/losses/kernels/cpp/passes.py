"""Run the passes in compiled kernels on a CPU, in float32 or float64.

Rows of logits are contiguous; results are written into the tensors given for them.
"""

from __future__ import annotations

from ctypes import c_double, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.kernels.compiled import FAMILIES, INSTEAD, CompiledKernels
from highrank_plugins.losses.kernels.cpp.build import Unavailable, library
from highrank_plugins.losses.plan import (
    LossPlan,
    MixtureBlock,
    Named,
    Scores,
    SoftmaxBlock,
    TreeBlock,
)

Sums = tuple[Tensor | None, ...]  # each [threads, …], or None
SUFFIX = {torch.float32: "float", torch.float64: "double"}
_POINTER, _SIZE, _NUMBER = c_void_p, c_int64, c_double
_FUNCTION = [c_int, _POINTER, _POINTER, _SIZE, _POINTER]
_TREE = [*[_POINTER, _SIZE, _SIZE] * 2, _POINTER, *[_SIZE] * 4, c_int]
ARGUMENTS: dict[str, list[Any]] = {
    "softmax": [
        _POINTER, *[_SIZE] * 3, *[_POINTER] * 5, *_FUNCTION, *[_NUMBER] * 4, *[_POINTER] * 6, c_int,
    ],
    "mixture": [
        _POINTER, *[_SIZE] * 3, *[_POINTER] * 6, *_FUNCTION, *[_NUMBER] * 3, *[_POINTER] * 8, c_int,
    ],
    "tree_forward": _TREE,
    "tree_backward": _TREE,
}  # fmt: skip


class CppKernels(CompiledKernels):
    """Add the bias and sum its gradient in the kernels, while the rows of a chunk are in cache."""

    adds_bias = True
    impl = "cpp"

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, compute: torch.dtype) -> None:
        super().__init__(plan, tensors, sums, compute)
        threads = torch.get_num_threads()
        if not self.by_torch and "bias" in self.sums:
            self.columns = plan.features.new_zeros(threads, plan.head.num_classes, dtype=self.wide)
        self.table_sums: Tensor | None = None  # [threads, length, 2]; None: not wanted
        if self.pairs is not None and self.sums_tables:
            self.table_sums = self.pairs.new_zeros(threads, *self.pairs.shape, dtype=torch.float64)

    def version(self) -> str:
        return Path(getattr(library(), "_name", "")).stem

    def run_softmax(
        self, block: SoftmaxBlock, bias_M: Tensor | None, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> None:  # fmt: skip
        values = block.logits_NM
        _call(
            "softmax", values.dtype, values, values.stride(0), *values.shape, bias_M,
            block.target_N, block.scale_N, block.weight_NM, log_probs, *self._function(),
            *block.weights, *scores, self.columns, sums=(self.columns, self.table_sums),
        )  # fmt: skip

    def run_mixture(
        self, block: MixtureBlock, bias_M: Tensor | None, scores: Scores,
        log_probs: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        underflow_N = torch.zeros_like(block.target_N, dtype=torch.bool)
        values, plan = block.logits_NKM, self.plan
        _call(
            "mixture", values.dtype, values, *values.shape, bias_M, block.target_N,
            block.log_prior_NK, block.scale_N, block.weight_NM, log_probs, *self._function(),
            plan.target_weight, plan.smoothing_weight, plan.z_loss, *scores, block.grad_prior_NK,
            underflow_N, self.columns, sums=(self.columns, self.table_sums),
        )  # fmt: skip
        return underflow_N.nonzero().squeeze(-1)

    def _function(self) -> tuple[Any, ...]:
        """Return f as a kernel takes it: family, numbers, tables, their length and gradients."""
        (family, numbers, _), pairs, sums = self.function, self.pairs, self.table_sums
        given = (c_double * len(numbers))(*numbers), pairs, 0 if pairs is None else len(pairs)
        return FAMILIES.index(family), *given, None if sums is None else sums.data_ptr()

    def tree_forward(self, tree: TreeBlock, out_NS: Tensor) -> None:
        """Write Σ_j π_j leaf_j into `out`; gate logits become σ, nodes exist in cache only."""
        self._tree("tree_forward", tree, out_NS)

    def tree_backward(self, tree: TreeBlock, grad_NS: Tensor) -> None:
        self._tree("tree_backward", tree, grad_NS)

    def _tree(self, name: str, tree: TreeBlock, mixed: Tensor) -> None:
        leaves, gates, _ = tree
        rows, components, classes = leaves.shape
        _call(
            name, self.wide, leaves, *leaves.stride()[:2], gates, gates.stride(1), gates.stride(0),
            mixed, mixed.stride(0), rows, classes, components,
        )  # fmt: skip

    def add_bias_gradient(self, grad_NM: Tensor, factor_N: Tensor) -> None:
        if self.columns is None:
            super().add_bias_gradient(grad_NM, factor_N)

    def finish(self) -> None:
        if self.columns is not None:
            self.sums["bias"].add_(self.columns.sum(0))
        if self.table_sums is not None:
            self.add_table_gradients(self.table_sums.sum(0))


def check_available(device: torch.device) -> None:
    if device.type != "cpu":
        raise ValueError(
            f"impl: 'cpp' needs a CPU, but the features are on {device}; move them, {INSTEAD}"
        )
    if isinstance(reason := library(), Unavailable):
        raise ValueError(f"impl: 'cpp' has no kernels: {reason}; {INSTEAD}")


def _call(name: str, dtype: torch.dtype, *arguments: Any, sums: Sums = ()) -> None:
    """Call a kernel by torch's number of threads, or fewer where sums have fewer rows for them."""
    function = getattr(library(), f"{name}_{SUFFIX[dtype]}")  # the same object every time
    if function.argtypes is None:
        function.argtypes, function.restype = ARGUMENTS[name], None
    given = [_place_of(a, dtype) if isinstance(a, Tensor) else a for a in arguments]
    function(*given, min([torch.get_num_threads(), *(len(s) for s in sums if s is not None)]))


def _place_of(tensor: Tensor, dtype: torch.dtype) -> int:
    """Return the address of a tensor on the CPU with contiguous rows."""
    contiguous = tensor.size(-1) <= 1 or tensor.stride(-1) == 1
    if tensor.dtype not in (torch.int64, torch.bool, dtype) or not contiguous or not tensor.is_cpu:
        found = f"{tensor.dtype} with strides {tensor.stride()} on {tensor.device}"
        raise TypeError(f"a kernel needs contiguous rows of {dtype} on the CPU, got {found}")
    return tensor.data_ptr()
