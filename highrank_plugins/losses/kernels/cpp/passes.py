"""Run the passes in compiled kernels on a CPU, in float32 or float64.

Rows of logits are contiguous; results are written into the tensors given for them.
"""

from __future__ import annotations

from ctypes import c_double, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.kernels.compiled import (
    CompiledKernels,
    KernelInput,
    empty_scores,
)
from highrank_plugins.losses.kernels.cpp.build import FAMILIES, Unavailable, library
from highrank_plugins.losses.kernels.torch import (
    MixtureBlock,
    RecomputeLogits,
    SoftmaxBlock,
    TreeBlock,
    recompute_in_log_domain,
)
from highrank_plugins.losses.plan import ClassWeights, KernelFunction, LossPlan, Named, Scores

SUFFIX = {torch.float32: "float", torch.float64: "double"}
_POINTER, _SIZE, _NUMBER = c_void_p, c_int64, c_double
_FUNCTION = [c_int, _POINTER, _POINTER, _SIZE, _POINTER]
_TREE = [*[_POINTER, _SIZE, _SIZE] * 2, _POINTER, *[_SIZE] * 4, c_int]
ARGUMENTS: dict[str, list[Any]] = {
    "softmax": [
        _POINTER, *[_SIZE] * 3, *[_POINTER] * 3, *_FUNCTION, *[_NUMBER] * 4, *[_POINTER] * 6, c_int,
    ],
    "mixture": [
        _POINTER, *[_SIZE] * 3, *[_POINTER] * 4, *_FUNCTION, *[_NUMBER] * 3, *[_POINTER] * 8, c_int,
    ],
    "tree_forward": _TREE,
    "tree_backward": _TREE,
}  # fmt: skip


class CppKernels(CompiledKernels):
    """Add the bias and sum its gradient in the kernels, while the rows of a chunk are in cache."""

    adds_bias = True
    families = FAMILIES

    def __init__(self, plan: LossPlan, tensors: Named, *others: Any) -> None:
        super().__init__(plan, tensors, *others)
        threads = torch.get_num_threads()
        self.columns: Tensor | None = None  # [threads, M], sums of the rows of each thread
        if self.function is not None and "bias" in self.sums:
            self.columns = torch.zeros(threads, plan.head.num_classes, dtype=self.wide)
        self.tables = NO_TABLES
        if self.function is not None and self.function.tables:
            self.tables = Tables.of(self.function, tensors, self.sums, self.wide, threads)

    def run_softmax(self, given: KernelInput, block: SoftmaxBlock, scores: Scores) -> None:
        softmax(
            given, block.target_N, block.factor_N, block.weights, scores, self.columns, self.tables
        )

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
            block.target_N.contiguous(), block.log_prior_NK, block.scale_N,
            *_function(given, self.tables), plan.target_weight, plan.smoothing_weight,
            plan.z_loss, *scores, block.grad_prior_NK, underflow_N, self.columns,
            threads=_threads(self.columns, self.tables),
        )  # fmt: skip
        if block.scale_N is not None:
            given.write_gradient(block.logits_NKM)
        lost = underflow_N.nonzero().squeeze(-1)
        if not len(lost):
            return scores
        recompute_in_log_domain(self, lost, scores, block, recompute_logits)
        if self.columns is not None:
            self.columns[0].add_(block.logits_NKM[lost].sum((0, 1)))
        return scores

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
            mixed, mixed.stride(0), rows, classes, components, threads=_threads(None),
        )  # fmt: skip

    def add_bias_gradient(self, grad_NM: Tensor, factor_N: Tensor | None) -> None:
        """Add the gradient of the bias, unless the pass has summed it."""
        if self.columns is None:
            super().add_bias_gradient(grad_NM, factor_N)

    def finish(self) -> None:
        if self.columns is not None:
            self.sums["bias"].add_(self.columns.sum(0))
        if self.tables.sums is not None:
            total = self.tables.sums.sum(0)  # all at once, because columns are slow to sum
            for i, name in enumerate(self.tables.names):
                if name in self.sums:
                    self.sums[name].add_(total[..., i])


class Tables(NamedTuple):
    """Hold the learned tables of f, side by side, and the gradients that the kernels sum."""

    names: tuple[str, ...] = ()  # names of the head's tensors
    pairs: Tensor | None = None  # [length, 2]
    sums: Tensor | None = None  # [threads, length, 2], float64; None: not wanted

    @classmethod
    def of(
        cls, function: KernelFunction, tensors: Named, sums: Named, wide: torch.dtype, threads: int
    ) -> Tables:
        """Return the tables of `function`, with zeros for their gradients if one is in `sums`."""
        if not function.tables:
            return cls()
        names = tuple(f"pointwise.{name}" for name in function.tables)
        pairs = torch.stack([tensors[name].to(wide) for name in names], -1)
        wanted = any(name in sums for name in names)
        zeros = torch.zeros(threads, *pairs.shape, dtype=torch.float64) if wanted else None
        return cls(names, pairs, zeros)


NO_TABLES = Tables()


def softmax(
    given: KernelInput,
    target_N: Tensor,
    factor_N: Tensor | None,
    weights: ClassWeights,
    scores: Scores,
    columns: Tensor | None,
    tables: Tables = NO_TABLES,
) -> None:
    """Fill the scores of values [N, M]; with a factor they become their gradient.

    The sum of the gradients of each thread's rows is added to `columns` [threads, M].
    """
    values = given.values
    _call(
        "softmax", values.dtype, values, values.stride(0), *values.shape, given.bias_M, target_N,
        factor_N, *_function(given, tables), *weights, *scores, columns,
        threads=_threads(columns, tables),
    )  # fmt: skip


def _function(given: KernelInput, tables: Tables) -> tuple[Any, ...]:
    """Return f as a kernel takes it: family, numbers, tables, their length and gradients."""
    family, numbers, _ = given.function
    length = 0 if tables.pairs is None else len(tables.pairs)
    sums = None if tables.sums is None else tables.sums.data_ptr()
    return FAMILIES.index(family), (c_double * len(numbers))(*numbers), tables.pairs, length, sums


def _threads(columns: Tensor | None, tables: Tables = NO_TABLES) -> int:
    """Return the number of threads: torch's, at most the rows of `columns` or of the sums."""
    rows = [len(sums) for sums in (columns, tables.sums) if sums is not None]
    return min([torch.get_num_threads(), *rows])


def _call(name: str, dtype: torch.dtype, *arguments: Any, threads: int) -> None:
    loaded = library()
    if isinstance(loaded, Unavailable):
        raise ValueError(str(loaded))
    for argument in arguments:
        if isinstance(argument, Tensor):
            _check(argument, dtype)
    function = getattr(loaded, f"{name}_{SUFFIX[dtype]}")  # the same object every time
    if function.argtypes is None:
        function.argtypes, function.restype = ARGUMENTS[name], None
    given = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    function(*given, threads)


def _check(tensor: Tensor, dtype: torch.dtype) -> None:
    """Check a tensor before a kernel reads or writes its memory."""
    rows_contiguous = tensor.dim() == 0 or tensor.size(-1) <= 1 or tensor.stride(-1) == 1
    right = tensor.dtype in (torch.int64, torch.bool, dtype)
    if not (rows_contiguous and right and tensor.device.type == "cpu"):
        raise TypeError(
            f"a kernel needs a tensor on the CPU with contiguous rows of {dtype}, got "
            f"{tensor.dtype} with strides {tensor.stride()} on {tensor.device}"
        )
