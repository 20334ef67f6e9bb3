"""Share buffers and matrix products among the fused losses of all structures.

A fused loss has its gradients written out. A chunk is its matrix products and one elementwise pass,
in place; no graph is kept over anything of the size of the vocabulary.

Suffixes of tensors are their shapes, see `heads.base`; N is a chunk here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.autograd import GradientSum
from highrank_plugins.losses.chunking import tokens_within
from highrank_plugins.losses.kernels.torch import Kernels, copy_unless_same
from highrank_plugins.losses.plan import AnyHead, LossPlan, Named, Scores

# Rows of chunks on a GPU start at multiples of this many numbers; Triton knows of no others.
ROW_MULTIPLE = 16
# bytes of the passes over the blocks of a split layer, which its limit of memory includes
BLOCKS_OF_SPLIT = 32 * 2**20


class LossChunk(NamedTuple):
    """Hold what a loss reads of N tokens, and memory for the gradients of that."""

    given: Named  # what `token_inputs` returned, each [N, ...]
    target_N: Tensor  # int64, in range
    scale_N: Tensor | None  # factor of each token's loss, 0 where ignored; None: scores only
    grads: Named  # memory for the gradients of `given`; empty without `scale_N`
    start: int  # number of the first token in the batch

    def rows(self, a: int, b: int) -> LossChunk:
        """Return the tokens a..b−1 of the chunk."""
        if b - a == len(self.target_N):
            return self
        scale_N = None if self.scale_N is None else self.scale_N[a:b]
        given, grads = ({n: t[a:b] for n, t in named.items()} for named in (self.given, self.grads))
        return LossChunk(given, self.target_N[a:b], scale_N, grads, self.start + a)


class FusedLoss:
    """Compute scores of chunks of tokens, and gradients into `sums`.

    `sums` is memory, at least float32, for the gradients of those `tensors` that are wanted and
    that the loss itself reads. It is written whole, except that of the bias and of pointwise
    functions: this holds zeros, to which gradients are added. Products have the dtype `compute`.
    """

    # first words of the names of the tensors that are read here, and not in `head.token_inputs`
    reads: ClassVar[tuple[str, ...]] = ("weight", "bias", "pointwise")
    # whether a block may have several chunks
    joins_chunks: ClassVar[bool] = True
    # whether a thread of compiled kernels holds all components of a class
    holds_components: ClassVar[bool] = False
    # whether it also applies f to each of them, and not only to their mixture
    applies_function_to_components: ClassVar[bool] = False

    def __init__(
        self, plan: LossPlan, tensors: Named, sums: Named, kernels: type[Kernels],
        compute: torch.dtype,
    ) -> None:  # fmt: skip
        self.plan, self.sums, self.compute = plan, sums, compute
        self.kernels = kernels(plan, tensors, sums, compute)
        self.weight = tensors["weight"].to(self.compute)
        self.weight_sum = GradientSum(sums["weight"]) if "weight" in sums else None
        self._buffers: dict[str, Tensor] = {}
        bias = tensors.get("bias")
        self.bias = None if bias is None else self.buffer("bias", len(bias)).copy_(bias)
        self.bias_of_pass = self.bias if self.kernels.adds_bias else None
        self.bias_of_product = None if self.kernels.adds_bias else self.bias
        self.prepare(tensors)

    def prepare(self, tensors: Named) -> None:
        """Compute what all chunks of a batch share."""

    @classmethod
    def floats_per_token(cls, head: AnyHead) -> int:
        """Return how many numbers a chunk of `head` holds per token."""
        raise NotImplementedError

    def chunk_tokens(self) -> int:
        """Return how many tokens a chunk may have."""
        plan, width = self.plan, self.kernels.bytes_per_logit
        floats, rows, memory = self.floats_per_token(plan.head), plan.head.num_classes, plan.memory
        if plan.split is not None:
            floats, rows = plan.split.floats, plan.split.rows
        most = plan.features.size(0) * rows // max(1, floats)
        matrix = (rows, self.weight.size(1))
        tokens = plan.most or tokens_within(plan.features, floats, memory, matrix, most, width)
        if plan.split is not None and memory is not None:
            tokens = max(1, tokens * max(memory // 2, memory - BLOCKS_OF_SPLIT) // memory)
        return tokens

    def token_inputs(
        self, features: Tensor, target: Tensor, tensors: Named, random_state: Any
    ) -> Named:
        """Return what a chunk needs of each token, computed through autograd."""
        return self.plan.head.token_inputs(features, tensors, random_state)

    def chunk(self, chunk: LossChunk) -> Scores:
        """Return the scores of N tokens, and write their gradients."""
        raise NotImplementedError

    def finish(self) -> None:
        """Add the remaining terms to `sums`; called once, after the last chunk."""
        self.kernels.finish()

    # -- helpers -----------------------------------------------------------------------------

    def buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return memory of this shape, the same for every chunk; its content is arbitrary.

        Rows are contiguous. On a GPU they start at multiples of 16 numbers: products and kernels
        then load 16 bytes at once. The dtype is by default that of chunks.
        """
        dtype, device = dtype or self.kernels.chunk_dtype, self.plan.features.device
        *outer, width = shape
        stride = width
        if device.type != "cpu" or self.kernels.pads_rows:
            stride = -(-width // ROW_MULTIPLE) * ROW_MULTIPLE
        size = math.prod(outer) * stride
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < size:
            # oneDNN's products in bfloat16 read the padding on CPUs with AMX: it must not be NaN
            is_zeroed = device.type == "cpu" and self.kernels.pads_rows
            allocate = torch.zeros if is_zeroed else torch.empty
            kept = self._buffers[name] = allocate(size, dtype=dtype, device=device)
        return kept[:size].view(*outer, stride)[..., :width]

    def product(
        self, rows: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None,
        adds: bool = False,
    ) -> None:  # fmt: skip
        """Write rows @ weight^T (+ bias) into `out`, or add the product to what `out` holds.

        Products are in the compute dtype, `out` and `bias` in that of chunks.
        """
        if rows.dtype != out.dtype:
            found = torch.mm(rows, weight.t(), out=self._narrow(out))
            (out.add_ if adds else out.copy_)(found)
            if bias is not None:
                out.add_(bias)
        elif adds:
            torch.addmm(out, rows, weight.t(), out=out)
        elif bias is None:
            torch.mm(rows, weight.t(), out=out)
        else:
            torch.addmm(bias, rows, weight.t(), out=out)

    def _narrow(self, like: Tensor) -> Tensor:
        return self.buffer("narrow", *like.shape, dtype=self.compute)

    def backward_products(
        self, total: GradientSum | None, grad: Tensor, rows: Tensor, weight: Tensor,
        factor: Tensor, out: Tensor, filtered: bool = True,
    ) -> None:  # fmt: skip
        """Add grad^T @ (factor rows) to `total`, and write factor (grad @ weight) into `out`.

        `rows` and `weight` are in the compute dtype. The factor is 1 if the passes apply it.
        Classes that the filter leaves out of `grad` [n, M] take part in neither product.
        """
        if grad.dtype != self.compute:
            grad = self._narrow(grad).copy_(grad)
        factor_n1 = None if self.kernels.applies_factor else factor.unsqueeze(-1)
        scaled = rows if factor_n1 is None else (rows * factor_n1).to(rows.dtype)
        kept = kept_columns(grad) if filtered and self.plan.filter_gradients else None
        if kept is not None and len(kept) < grad.size(1):
            grad, weight = grad[:, kept], weight[kept]
            if total is not None:
                total.add_product(grad, scaled, kept)
        elif total is not None:
            total.add_product(grad, scaled)
        found = torch.mm(grad, weight, out=out if out.dtype == self.compute else None)
        copy_unless_same(found if factor_n1 is None else found.mul_(factor_n1), out)


def kept_columns(grad: Tensor) -> Tensor:
    """Return the classes whose gradient in `grad` [n, M] matters in its dtype: int64 indices.

    A class is left out if its entries are at most ε times the largest entry g of the chunk. Here ε
    is the resolution of the dtype (2^-23 for float32, 2^-7 for bfloat16): added to g, these entries
    would be rounded away. So the gradient of a row of the vocabulary matrix is off by at most
    ε g Σ_n |h_n|, the gradient of a context by at most ε g Σ_x |w_x|. If an entry is infinite or
    NaN, all classes are kept, so that the error stays visible.
    """
    if grad.numel() == 0:
        return torch.arange(grad.size(1), device=grad.device)
    largest = grad.abs().amax(0)
    top = largest.max()
    matters = (largest > torch.finfo(grad.dtype).eps * top) | ~top.isfinite()
    return matters.nonzero().squeeze(-1)
