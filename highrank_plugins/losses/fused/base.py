"""Share buffers and matrix products among the fused losses of all structures.

Suffixes of tensors are their shapes, see `heads.base`; N is a chunk here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.chunked_head import ChunkedHead, Named
from highrank_plugins.losses.fused.filtering import filtered_products
from highrank_plugins.losses.fused.products import gradient_products, rows_times, rows_times_
from highrank_plugins.losses.kernels.base import Kernels
from highrank_plugins.losses.plan import LossPlan, Scores

# Rows of chunks on a GPU start at multiples of this many numbers; Triton knows of no others.
ROW_MULTIPLE = 16


class FusedLoss:
    """Compute scores of chunks of tokens, and gradients into `sums`.

    Args:
        plan: the batch.
        tensors: what `head.tensors()` returns, detached.
        sums: zeros, at least float32, for those `tensors` that the fused loss itself reads and
            whose gradient is wanted; gradients are added to them. Those of `overwrites` hold
            anything, and are written whole.
        kernels: the elementwise passes, of the same batch.
    """

    # names of the tensors read here and not in `head.token_inputs`, apart from pointwise ones
    reads: ClassVar[tuple[str, ...]] = ("weight", "bias")
    # names of the tensors whose gradients are written whole, by the first chunk or at the end
    overwrites: ClassVar[tuple[str, ...]] = ()
    # names of `local` whose gradients `chunk` writes into memory that it is given
    writes_local: ClassVar[tuple[str, ...]] = ()
    # whether a thread of compiled kernels holds all components of a class
    holds_components: ClassVar[bool] = False
    # whether it also applies f to each of them, and not only to their mixture
    applies_function_to_components: ClassVar[bool] = False

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, kernels: Kernels) -> None:
        self.plan, self.sums, self.kernels = plan, sums, kernels
        self.compute = kernels.compute
        self.weight = tensors["weight"].to(self.compute)
        self._buffers: dict[str, Tensor] = {}
        bias = tensors.get("bias")
        self.bias = None if bias is None else self.buffer("bias", len(bias)).copy_(bias)
        self.bias_of_pass = self.bias if kernels.adds_bias else None
        self.bias_of_product = None if kernels.adds_bias else self.bias
        self._begun: set[str] = set()
        self.prepare(tensors)

    def prepare(self, tensors: Named) -> None:
        """Compute what all chunks of a batch share."""

    @classmethod
    def reads_tensor(cls, name: str) -> bool:
        """Whether the tensor `name` is read here, and not by `head.token_inputs`."""
        return name in cls.reads or name.startswith("pointwise.")

    @classmethod
    def floats_per_token(cls, head: ChunkedHead) -> int:
        """Return how many numbers a chunk of `head` holds per token."""
        raise NotImplementedError

    def chunk(
        self,
        local: dict[str, Tensor],
        target_N: Tensor,
        scale_N: Tensor | None,
        random_state: Any,
        out: dict[str, Tensor],
    ) -> tuple[Scores, dict[str, Tensor]]:
        """Return the scores of N tokens, and the gradients of `local` that are not in `out`.

        Args:
            local: what `head.token_inputs` returned, each [N, ...].
            target_N: int64, in range.
            scale_N: factor of each token's loss, 0 where ignored; None: scores only.
            random_state: noise of these tokens.
            out: contiguous memory in the compute dtype for gradients of `writes_local`.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Add the remaining terms to `sums`; called once, after the last chunk."""
        self.kernels.finish()

    # -- helpers -----------------------------------------------------------------------------

    def buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return memory of this shape, the same for every chunk; its content is arbitrary.

        Rows are contiguous. On a GPU they start at multiples of 16 numbers: products and kernels
        then load 16 bytes at once.

        Args:
            dtype: None: that of chunks.
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
        self,
        rows: Tensor,
        weight: Tensor,
        out: Tensor,
        bias: Tensor | None = None,
        adds: bool = False,
    ) -> None:
        """Write rows @ weight^T (+ bias) into `out`, or add the product to what `out` holds.

        Products are in the compute dtype, `out` and `bias` in that of chunks.
        """
        if rows.dtype != out.dtype:
            found = torch.mm(rows, weight.t(), out=self._narrow_buffer(out))
            (out.add_ if adds else out.copy_)(found)
            if bias is not None:
                out.add_(bias)
        elif adds:
            torch.addmm(out, rows, weight.t(), out=out)
        elif bias is None:
            torch.mm(rows, weight.t(), out=out)
        else:
            torch.addmm(bias, rows, weight.t(), out=out)

    def narrow(self, grad: Tensor) -> Tensor:
        """Return `grad` [n, M] in the compute dtype: itself, or a copy for the next product."""
        if grad.dtype == self.compute:
            return grad
        return self._narrow_buffer(grad).copy_(grad)

    def _narrow_buffer(self, like: Tensor) -> Tensor:
        return self.buffer("narrow", *like.shape, dtype=self.compute)

    def backward_products(
        self,
        name: str,
        grad: Tensor,
        rows: Tensor,
        weight: Tensor,
        factor: Tensor | None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Add grad^T @ (factor rows) to sums[name], and return factor (grad @ weight).

        All but `factor` are in the compute dtype. Classes that the filter leaves out of `grad`
        [n, M] take part in neither.

        Args:
            out: memory for what is returned.
        """
        rows = rows_times(rows, factor)
        products = filtered_products if self.plan.filter_gradients else gradient_products
        found = products(self.sums.get(name), grad, rows, weight, self.is_first(name), out)
        return rows_times_(found, factor)

    def is_first(self, name: str) -> bool:
        """Whether the sum `name`, one of `overwrites` or a part of one, is used first."""
        if name in self._begun:
            return False
        self._begun.add(name)
        return True
