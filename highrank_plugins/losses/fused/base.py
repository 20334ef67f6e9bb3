"""What the fused losses of all structures share: buffers, products, blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..plan import ChunkedHead, LossPlan, chunk_ranges

# Bytes of the rows that one elementwise pass works on: what the second-level caches of a few cores
# hold. Matrix products want more rows than that.
BLOCK_MEMORY = 2**21


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
        prefix = "pointwise."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        own_sums = {n.removeprefix(prefix): t for n, t in sums.items() if n.startswith(prefix)}
        self.evaluate = plan.head.pointwise.bind(own, own_sums, self.wide)
        # A factor per row can wait until after the matrix products, unless the pointwise function
        # adds up gradients of its own, or float16 would lose what the factor makes large enough.
        self.factor_first = bool(own_sums) or compute == torch.float16
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

    def buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory of the size asked for, the same for every chunk; its content is arbitrary."""
        size = 1
        for extent in shape:
            size *= extent
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < size:
            device = self.plan.features.device
            kept = torch.empty(size, dtype=dtype or self.wide, device=device)
            self._buffers[name] = kept
        return kept[:size].view(shape)

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows for elementwise passes: cache-sized on a CPU, everything on a GPU."""
        size = rows
        if self.plan.features.device.type == "cpu":
            size = max(1, BLOCK_MEMORY // (4 * max(1, floats_per_row)))
        return chunk_ranges(0, rows, size)

    def product(
        self, rows: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None
    ) -> None:
        """out = rows @ weight^T (+ bias); products in the compute dtype, `out` wide."""
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

    def add_columns(self, name: str, grad: Tensor, factor: Tensor | None) -> None:
        """sums[name] += Σ_n factor_n grad_n over rows in the wide dtype."""
        total = self.sums.get(name)
        if total is None:
            return
        if factor is None:
            total.add_(grad.sum(0))
        else:
            total.addmv_(grad.t(), factor)


def rows_times(rows: Tensor, factor: Tensor | None) -> Tensor:
    """rows [n, ...] times factor [n], in the dtype of rows; None is 1."""
    if factor is None:
        return rows
    return (rows * factor.view(-1, *([1] * (rows.dim() - 1)))).to(rows.dtype)
