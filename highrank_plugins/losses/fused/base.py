"""What the fused losses of all structures share: buffers, products, blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.plan import ChunkedHead, LossPlan, chunk_ranges

# Bytes of the rows that one elementwise pass works on: what the second-level caches of a few cores
# hold. Matrix products want more rows than that.
BLOCK_MEMORY = 2**22


class Scores(NamedTuple):
    """−log P(target) [n], Σ_x −log P(x) [n] or None, hits [n] bool or None."""

    nll: Tensor
    smooth_sum: Tensor | None
    hits: Tensor | None


class FusedLoss:
    """Scores of chunks of tokens, and gradients into `sums`.

    Args:
        plan: the batch; gives the smoothing, the pointwise function, whether hits are wanted.
        tensors: what `head.tensors()` returns, detached.
        sums: zeros, at least float32, for each of `tensors` whose gradient is wanted and that the
            fused loss itself reads; gradients are added to them.
        compute: dtype of matrix products.

    The loss of token n is scale_n (α nll + ε_i Σ_x −log P_x), with α and ε_i of the plan.
    """

    # whether a chunk is in the compute dtype and passed over at once, as suits a GPU's kernels
    narrow_chunks: ClassVar[bool] = False
    # whether gradients leave the pass with the factor of their row, and whether it adds the bias
    factor_in_pass: ClassVar[bool] = False
    bias_in_pass: ClassVar[bool] = False
    # whether the −ε_i in the gradient of every logit is left to the matrix products
    folds_constant = False
    # names of the tensors read here and not in `head.token_inputs`, apart from pointwise ones
    reads: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def __init__(
        self,
        plan: LossPlan,
        tensors: dict[str, Tensor],
        sums: dict[str, Tensor],
        compute: torch.dtype,
    ) -> None:
        self.plan, self.sums, self.compute = plan, sums, compute
        self.wide = torch.float64 if compute == torch.float64 else torch.float32
        self.stored = compute if self.narrow_chunks else self.wide  # dtype of chunks
        self.weight = tensors["weight"].to(compute)
        bias = tensors.get("bias")
        self.bias = None if bias is None else bias.to(self.stored).contiguous()
        prefix = "pointwise."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        own_sums = {n.removeprefix(prefix): t for n, t in sums.items() if n.startswith(prefix)}
        self.evaluate = plan.head.pointwise.bind(own, own_sums, self.wide)
        # A factor per row can wait until after the matrix products, unless the pointwise function
        # adds up gradients of its own, float16 would lose what the factor makes large enough, or
        # gradients are compared across rows.
        self.factor_first = (
            self.factor_in_pass
            or bool(own_sums)
            or compute == torch.float16
            or plan.filter_gradients
        )
        self._buffers: dict[str, Tensor] = {}

    @classmethod
    def reads_tensor(cls, name: str) -> bool:
        """Whether the tensor `name` is read here, and not by `head.token_inputs`."""
        return name in cls.reads or name.startswith("pointwise.")

    @classmethod
    def floats_per_token(cls, head: ChunkedHead) -> int:
        """Numbers that a chunk of `head` holds per token."""
        raise NotImplementedError

    def chunk(
        self, local: dict[str, Tensor], target: Tensor, scale: Tensor | None, draws: Any
    ) -> tuple[Scores, dict[str, Tensor]]:
        """Scores of n tokens, and the gradients of `local`.

        Args:
            local: what `head.token_inputs` returned, each [n, ...].
            target: int64 [n], in range.
            scale: [n] factor of each token's loss, 0 where ignored; None: scores only.
            draws: noise of these tokens.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Add to `sums` what is left to the end; called once, after the last chunk."""

    # -- helpers -----------------------------------------------------------------------------

    def buffer(self, name: str, *shape: int) -> Tensor:
        """Memory of the size asked for, the same for every chunk; its content is arbitrary."""
        size = 1
        for extent in shape:
            size *= extent
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < size:
            device = self.plan.features.device
            kept = torch.empty(size, dtype=self.stored, device=device)
            self._buffers[name] = kept
        return kept[:size].view(shape)

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows for elementwise passes: cache-sized on a CPU, everything on a GPU."""
        size = rows
        if self.plan.features.device.type == "cpu" and not self.narrow_chunks:
            size = max(1, BLOCK_MEMORY // (4 * max(1, floats_per_row)))
        return chunk_ranges(0, rows, size)

    def product(
        self, rows: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None
    ) -> None:
        """out = rows @ weight^T (+ bias); products in the compute dtype, `out` and `bias` as
        chunks are stored."""
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
        """sums[name] += grad^T @ rows, both in the compute dtype; nothing if it is not wanted."""
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
        """sums[name] += grad^T @ (factor rows); returns factor (grad @ weight).

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

    def add_columns(self, name: str, grad: Tensor, factor: Tensor | None) -> None:
        """sums[name] += Σ_n factor_n grad_n over rows, summed in the wide dtype."""
        total = self.sums.get(name)
        if total is None:
            return
        if factor is None:
            total.add_(grad.sum(0, dtype=total.dtype))
        else:
            total.addmv_(grad.t(), factor)


def kept_columns(grad: Tensor) -> Tensor:
    """Classes with a gradient in `grad` [n, M] that matters in its dtype: int64 indices.

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
    """rows [n, ...] times factor [n], in the dtype of rows; None is 1."""
    if factor is None:
        return rows
    return (rows * factor.view(-1, *([1] * (rows.dim() - 1)))).to(rows.dtype)


def rows_times_(rows: Tensor, factor: Tensor | None) -> Tensor:
    """The same in place."""
    return rows if factor is None else rows.mul_(factor.view(-1, *([1] * (rows.dim() - 1))))
