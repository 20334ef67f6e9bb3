"""The floor of a loss: its matrix products, forward and backward, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import torch

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.benchmarks.measure import Step, alternate

# Rows are also tried in pieces with outputs of this size, which stay near the cache.
PIECE = 2**25


def gemm_floor_step(case: LossCase) -> Step:
    """Return a step that does all products once, each whole or in pieces, whichever is faster."""
    dtype = getattr(torch, case.dtype)
    shared: dict[str, torch.Tensor] = {}

    def memory(elements: int, name: str) -> torch.Tensor:
        """One buffer for each side of all products."""
        kept = shared.get(name)
        if kept is None or kept.numel() < elements:
            kept = torch.randn(elements, dtype=torch.float32, device=case.device).to(dtype)
            shared[name] = kept
        return kept[:elements]

    chosen = []
    for rows, inner, columns in case.layer().products(case.tokens):
        if 0 in (rows, inner, columns):
            continue
        piece = max(1, min(rows, PIECE // (columns * dtype.itemsize)))
        ways = [_product(memory, rows, inner, columns, size) for size in {rows, piece}]
        if len(ways) > 1:
            seconds = alternate(ways, case.device, 1)
            ways = [ways[seconds.index(min(seconds))]]
        chosen.append(ways[0])

    def run() -> None:
        for product in chosen:
            product()

    return run


def _product(
    memory: Callable[[int, str], torch.Tensor], rows: int, inner: int, columns: int, size: int
) -> Step:
    """z = x W^T, dx = z W, dW += z^T x, `size` rows at a time."""

    def run() -> None:
        x = memory(rows * inner, "x").view(rows, inner)
        weight = memory(columns * inner, "weight").view(columns, inner)
        grad_x = memory(rows * inner, "grad_x").view(rows, inner)
        grad_weight = memory(columns * inner, "grad_weight").view(columns, inner)
        for start in range(0, rows, size):
            part = slice(start, min(start + size, rows))
            z = memory((part.stop - start) * columns, "z").view(-1, columns)
            torch.mm(x[part], weight.t(), out=z)
            torch.mm(z, weight, out=grad_x[part])
            torch.addmm(grad_weight, z.t(), x[part], beta=0 if start == 0 else 1, out=grad_weight)

    return run
