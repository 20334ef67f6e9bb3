"""What the fused losses of all structures share: buffers and matrix products.

Suffixes of tensors are their shapes, see `heads.base`; N is a chunk here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.kernels.base import Kernels, Scores
from highrank_plugins.losses.plan import ChunkedHead, LossPlan


class FusedLoss:
    """Scores of chunks of tokens, and gradients into `sums`.

    Args:
        plan: the batch.
        tensors: what `head.tensors()` returns, detached.
        sums: zeros, at least float32, for each of `tensors` whose gradient is wanted and that the
            fused loss itself reads; gradients are added to them.
        kernels: the elementwise passes, of the same batch.
    """

    # names of the tensors read here and not in `head.token_inputs`, apart from pointwise ones
    reads: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __init__(
        self,
        plan: LossPlan,
        tensors: dict[str, Tensor],
        sums: dict[str, Tensor],
        kernels: Kernels,
    ) -> None:
        self.plan, self.sums, self.kernels = plan, sums, kernels
        self.compute = kernels.compute
        self.weight = tensors["weight"].to(self.compute)
        bias = tensors.get("bias")
        self.bias = None if bias is None else bias.to(kernels.chunk_dtype).contiguous()
        self.bias_of_pass = self.bias if kernels.adds_bias else None
        self.bias_of_product = None if kernels.adds_bias else self.bias
        self._buffers: dict[str, Tensor] = {}

    @classmethod
    def reads_tensor(cls, name: str) -> bool:
        """Whether the tensor `name` is read here, and not by `head.token_inputs`."""
        return name in cls.reads or name.startswith("pointwise.")

    @classmethod
    def floats_per_token(cls, head: ChunkedHead) -> int:
        """Return how many numbers a chunk of `head` holds per token."""
        raise NotImplementedError

    def chunk(
        self, local: dict[str, Tensor], target_N: Tensor, scale_N: Tensor | None, random_state: Any
    ) -> tuple[Scores, dict[str, Tensor]]:
        """Return the scores of N tokens, and the gradients of `local`.

        Args:
            local: what `head.token_inputs` returned, each [N, ...].
            target_N: int64, in range.
            scale_N: factor of each token's loss, 0 where ignored; None: scores only.
            random_state: noise of these tokens.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Add to `sums` what is left to the end; called once, after the last chunk."""
        self.kernels.finish()

    # -- helpers -----------------------------------------------------------------------------

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Return memory of this size, the same for every chunk; its content is arbitrary."""
        size = 1
        for extent in shape:
            size *= extent
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < size:
            device = self.plan.features.device
            kept = torch.empty(size, dtype=self.kernels.chunk_dtype, device=device)
            self._buffers[name] = kept
        return kept[:size].view(shape)

    def product(
        self, rows: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None
    ) -> None:
        """Write rows @ weight^T (+ bias) into `out`.

        Products are in the compute dtype, `out` and `bias` in that of chunks.
        """
        if rows.dtype == out.dtype:
            if bias is None:
                torch.mm(rows, weight.t(), out=out)
            else:
                torch.addmm(bias, rows, weight.t(), out=out)
            return
        out.copy_(rows @ weight.t())
        if bias is not None:
            out.add_(bias)

    def add_product(self, name: str, grad: Tensor, rows: Tensor) -> None:
        """Add grad^T @ rows, both in the compute dtype, to sums[name] where that is wanted."""
        total = self.sums.get(name)
        if total is None:
            return
        if rows.dtype == total.dtype:
            total.addmm_(grad.t(), rows)
        else:
            total.add_(grad.t() @ rows)

    def backward_products(
        self, name: str, grad: Tensor, rows: Tensor, weight: Tensor, factor: Tensor | None
    ) -> Tensor:
        """Add grad^T @ (factor rows) to sums[name], and return factor (grad @ weight).

        All but `factor` are in the compute dtype. Classes that the filter leaves out of `grad`
        [n, M] take part in neither.
        """
        rows = rows_times(rows, factor)
        if self.plan.filter_gradients:
            kept = kept_columns(grad)
            if len(kept) < grad.size(1):
                grad, weight = grad[:, kept], weight[kept]
                total = self.sums.get(name)
                if total is not None:
                    total.index_add_(0, kept, (grad.t() @ rows).to(total.dtype))
                return rows_times_(grad @ weight, factor)
        self.add_product(name, grad, rows)
        return rows_times_(grad @ weight, factor)


def kept_columns(grad: Tensor) -> Tensor:
    """Return the classes whose gradient in `grad` [n, M] matters in its dtype: int64 indices.

    What is left out is at most ε times the largest entry, with ε the resolution of the dtype
    (2^-23 for float32, 2^-7 for bfloat16): beside that entry it would be rounded away. So the
    gradient of a row of the vocabulary matrix is off by at most ε g Σ_n |h_n|, that of a context
    by at most ε g Σ_x |w_x|, g being the largest entry of the chunk. Everything is kept where an
    entry is infinite or NaN, so that it shows.
    """
    if grad.numel() == 0:
        return torch.arange(grad.size(1), device=grad.device)
    largest = grad.abs().amax(0)
    top = largest.max()
    matters = (largest > torch.finfo(grad.dtype).eps * top) | ~top.isfinite()
    return matters.nonzero().squeeze(-1)


def rows_times(rows: Tensor, factor: Tensor | None) -> Tensor:
    """Return rows [n, ...] times factor [n], in the dtype of rows; None is 1."""
    if factor is None:
        return rows
    return (rows * factor.view(-1, *([1] * (rows.dim() - 1)))).to(rows.dtype)


def rows_times_(rows: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply rows [n, ...] by factor [n] in place; None is 1."""
    return rows if factor is None else rows.mul_(factor.view(-1, *([1] * (rows.dim() - 1))))
