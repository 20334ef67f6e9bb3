"""Make the passes by compiled kernels on a CPU, float32 or float64.

Rows of logits are contiguous; results are written into the tensors given for them.
"""

from __future__ import annotations

from ctypes import c_double, c_int, c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.kernels.base import (
    MixtureBlock,
    RecomputeLogits,
    Scores,
    SoftmaxBlock,
)
from highrank_plugins.losses.kernels.compiled import CompiledKernels, KernelInput, empty_scores
from highrank_plugins.losses.kernels.cpp.build import Unavailable, library
from highrank_plugins.losses.kernels.torch_mixture import recompute_in_log_domain
from highrank_plugins.losses.plan import ClassWeights

SUFFIX = {torch.float32: "float", torch.float64: "double"}
_POINTER, _SIZE, _NUMBER = c_void_p, c_int64, c_double
_TREE = [*[_POINTER, _SIZE, _SIZE] * 2, _POINTER, *[_SIZE] * 4, c_int]
ARGUMENTS: dict[str, list[Any]] = {
    "softmax": [_POINTER, *[_SIZE] * 3, *[_POINTER] * 3, *[_NUMBER] * 5, *[_POINTER] * 4, c_int],
    "mixture": [_POINTER, *[_SIZE] * 3, *[_POINTER] * 4, *[_NUMBER] * 4, *[_POINTER] * 6, c_int],
    "tree_forward": _TREE,
    "tree_backward": _TREE,
}


class CppKernels(CompiledKernels):
    """Add the bias and sum its gradient in the kernels, while the rows of a chunk are in cache."""

    adds_bias = True

    def __init__(self, *batch: Any) -> None:
        super().__init__(*batch)
        self.columns: Tensor | None = None  # [threads, M], sums of the rows of each thread
        if self.knows_function and "bias" in self.sums:
            threads = torch.get_num_threads()
            self.columns = torch.zeros(threads, self.plan.head.num_classes, dtype=self.wide)

    def run_softmax(self, given: KernelInput, block: SoftmaxBlock, scores: Scores) -> None:
        softmax(given, block.target_N, block.factor_N, block.weights, scores, self.columns)

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        """Return scores and write gradients, see `Kernels.mixture_pass`.

        The kernel sees all components of a token at once.
        """
        given = KernelInput.of(self, block.logits_NKM, bias_M)
        scores = empty_scores(self, block.log_prior_NK)
        underflow_N = torch.zeros_like(block.target_N, dtype=torch.bool)
        values, plan = given.values, self.plan
        _call(
            "mixture", values.dtype, values, *values.shape, given.bias_M,
            block.target_N.contiguous(), block.log_prior_NK, block.scale_N, *given.gss,
            plan.target_weight, plan.smoothing_weight, *scores, block.grad_prior_NK, underflow_N,
            self.columns, threads=_threads(self.columns),
        )  # fmt: skip
        if block.scale_N is not None:
            given.write_gradient(block.logits_NKM)
        lost = underflow_N.nonzero().squeeze(-1)
        recompute_in_log_domain(self, lost, scores, block, recompute_logits)
        if self.columns is not None and len(lost):
            self.columns[0].add_(block.logits_NKM[lost].sum((0, 1)))
        return scores

    def tree_forward(self, leaves_NKS: Tensor, gates_JNS: Tensor, out_NS: Tensor) -> None:
        """Write Σ_j π_j leaf_j into `out`; gate logits become σ, nodes exist in cache only."""
        self._tree("tree_forward", leaves_NKS, gates_JNS, out_NS)

    def tree_backward(self, grad_NS: Tensor, leaves_NKS: Tensor, gates_JNS: Tensor) -> None:
        self._tree("tree_backward", leaves_NKS, gates_JNS, grad_NS)

    def _tree(self, name: str, leaves: Tensor, gates: Tensor, mixed: Tensor) -> None:
        rows, components, classes = leaves.shape
        _call(
            name, self.wide, leaves, *leaves.stride()[:2], gates, gates.stride(1), gates.stride(0),
            mixed, mixed.stride(0), rows, classes, components, threads=_threads(None),
        )  # fmt: skip

    def add_bias_gradient(self, grad_NM: Tensor, factor_N: Tensor | None) -> None:
        """Add the gradient of the bias, unless the pass has summed it."""
        if self.columns is None:
            super().add_bias_gradient(grad_NM, factor_N)

    def finish(self) -> None:
        if self.columns is not None:
            self.sums["bias"].add_(self.columns.sum(0))


def softmax(
    given: KernelInput,
    target_N: Tensor,
    factor_N: Tensor | None,
    weights: ClassWeights,
    scores: Scores,
    columns: Tensor | None,
) -> None:
    """Fill the scores of values [N, M]; with a factor they become their gradient.

    The sum of the gradients of each thread's rows is added to `columns` [threads, M].
    """
    values = given.values
    _call(
        "softmax", values.dtype, values, values.stride(0), *values.shape, given.bias_M, target_N,
        factor_N, *given.gss, *weights, *scores, columns, threads=_threads(columns),
    )  # fmt: skip


def _threads(columns: Tensor | None) -> int:
    """Return the number of threads: torch's, at most the number of rows of columns."""
    threads = torch.get_num_threads()
    return threads if columns is None else min(threads, len(columns))


def _call(name: str, dtype: torch.dtype, *arguments: Any, threads: int) -> None:
    loaded = library()
    if isinstance(loaded, Unavailable):
        raise ValueError(str(loaded))
    for argument in arguments:
        if isinstance(argument, Tensor):
            _check(argument, dtype)
    function = getattr(loaded, f"{name}_{SUFFIX[dtype]}")  # the same object each time
    if function.argtypes is None:
        function.argtypes, function.restype = ARGUMENTS[name], None
    given = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    function(*given, threads)


def _check(tensor: Tensor, dtype: torch.dtype) -> None:
    """Check what a kernel takes for granted of each tensor, whose memory it reads and writes."""
    rows_contiguous = tensor.dim() == 0 or tensor.size(-1) <= 1 or tensor.stride(-1) == 1
    right = tensor.dtype in (torch.int64, torch.bool, dtype)
    if not (rows_contiguous and right and tensor.device.type == "cpu"):
        raise TypeError(
            f"a kernel needs a tensor on the CPU with contiguous rows of {dtype}, got "
            f"{tensor.dtype} with strides {tensor.stride()} on {tensor.device}"
        )
