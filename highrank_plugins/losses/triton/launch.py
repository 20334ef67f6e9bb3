"""The kernels as functions of tensors; an empty chunk starts none.

Chunks and their values have contiguous rows; results are written into the tensors given for them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from highrank_plugins.losses.fused.kernel_passes import Weights
from highrank_plugins.losses.triton.kernels.mixture import mixture_kernel
from highrank_plugins.losses.triton.kernels.softmax import gradient_kernel, softmax_kernel
from highrank_plugins.losses.triton.kernels.tree import mix_kernel, unmix_kernel
from highrank_plugins.losses.triton.tiles import Tile, mixture_tile, softmax_tile, tree_tile

WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}


PLAIN = Weights()


def softmax(
    values: Tensor,
    target: Tensor,
    bent_line: tuple[float, float],
    nll: Tensor,
    *,
    bias: Tensor | None = None,
    factor: Tensor | None = None,
    weights: Weights = PLAIN,
    log_norm: Tensor | None = None,
    smooth_sum: Tensor | None = None,
    hits: Tensor | None = None,
) -> None:
    """Scores of values [rows, M]; with `factor` [rows], values become their gradient.

    `target` [n] counts for rows / n rows each.
    """
    rows, classes = values.shape
    if rows == 0:
        return
    tile = softmax_tile(classes)
    softmax_kernel[_grid(rows, tile)](
        values, values.stride(0), bias, target, factor, nll, log_norm, smooth_sum, hits,
        rows, classes, rows // len(target), *bent_line, *weights,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip


def gradient(
    values: Tensor,
    target: Tensor,
    bent_line: tuple[float, float],
    log_norm: Tensor,
    factor: Tensor,
) -> None:
    """values [rows, M] become factor (P − 1[x = y]) f', given their log-sum-exp [rows]."""
    rows, classes = values.shape
    if rows == 0:
        return
    tile = softmax_tile(classes)
    gradient_kernel[_grid(rows, tile)](
        values, values.stride(0), target, factor, log_norm, rows, classes,
        rows // len(target), *bent_line,
        ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip


def mixture(
    values: Tensor,
    target: Tensor,
    bent_line: tuple[float, float],
    log_norm: Tensor,
    log_prior: Tensor,
    *,
    factor: Tensor | None,
    weights: Weights,
    smooth_sum: Tensor | None,
    share: Tensor | None,
    hits: Tensor | None,
) -> None:
    """What the mixture of values [n, K, M] gives, see `mixture_kernel`; the gradient with share."""
    tokens, components, classes = values.shape
    if tokens == 0:
        return
    tile = mixture_tile(components, classes)
    mixture_kernel[(-(-tokens // tile.tokens),)](
        values, log_norm, log_prior, target, factor, smooth_sum, share, hits,
        tokens, classes, components, *bent_line, weights.on_target, weights.every_class,
        TOKENS=tile.tokens, COMPONENTS=tile.components, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip


def mix(leaves: Tensor, gates: Tensor, out: Tensor, wide: torch.dtype) -> None:
    """out [n, S] = Σ_j π_j leaf_j of leaves [n, K, S] and gate logits [K − 1, n, S]."""
    _tree(mix_kernel, leaves, gates, out, wide)


def unmix(grad: Tensor, leaves: Tensor, gates: Tensor, wide: torch.dtype) -> None:
    """leaves and gates, as they went into `mix`, become their gradients, given that of its out."""
    _tree(unmix_kernel, leaves, gates, grad, wide)


def _tree(kernel: Any, leaves: Tensor, gates: Tensor, mixed: Tensor, wide: torch.dtype) -> None:
    rows, components, classes = leaves.shape
    if leaves.numel() == 0:
        return
    tile = tree_tile(components, classes)
    kernel[(*_grid(rows, tile), -(-classes // tile.columns))](
        leaves, *leaves.stride()[:2], gates, gates.stride(1), gates.stride(0),
        mixed, mixed.stride(0), rows, classes,
        components, WIDE[wide], ROWS=tile.rows, COLUMNS=tile.columns, num_warps=tile.warps,
    )  # fmt: skip


def _grid(rows: int, tile: Tile) -> tuple[int]:
    return (-(-rows // tile.rows),)
