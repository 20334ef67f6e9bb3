"""Compute matrix products of gradients, and their operands."""

from __future__ import annotations

import torch
from torch import Tensor


def aligned(width: int, dtype: torch.dtype) -> int:
    """Return the least number of columns, at least `width`, that are a multiple of 16 bytes."""
    multiple = 16 // dtype.itemsize
    return -(-width // multiple) * multiple


def gradient_products(total: Tensor | None, grad: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Add grad^T @ rows to `total` [M, D] if there is one, and return grad @ weight."""
    if total is not None:
        add_product_to(total, grad, rows)
    return grad @ weight


def add_product_to(total: Tensor, grad: Tensor, rows: Tensor) -> None:
    """Add grad^T @ rows to `total`, which has their dtype or is wider."""
    if rows.dtype == total.dtype:
        total.addmm_(grad.t(), rows)
    elif products_add_in_float32(total.device):
        torch.addmm(total, grad.t(), rows, out_dtype=total.dtype, out=total)
    else:
        total.add_(grad.t() @ rows)


def products_add_in_float32(device: torch.device) -> bool:
    """Whether a product of half-precision matrices can be added to float32: from sm_80 on."""
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type != "cpu"


def rows_times(rows: Tensor, factor: Tensor | None) -> Tensor:
    """Return rows [n, ...] times factor [n], in the dtype of rows; None is 1."""
    if factor is None:
        return rows
    return (rows * factor.view(-1, *([1] * (rows.dim() - 1)))).to(rows.dtype)


def rows_times_(rows: Tensor, factor: Tensor | None) -> Tensor:
    """Multiply rows [n, ...] by factor [n] in place; None is 1."""
    return rows if factor is None else rows.mul_(factor.view(-1, *([1] * (rows.dim() - 1))))


def filtered_products(total: Tensor | None, grad: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Add grad^T @ rows to `total` [M, D] if there is one, and return grad @ weight.

    Classes that `kept_columns` leaves out of `grad` [n, M] take part in neither.
    """
    kept = kept_columns(grad)
    if len(kept) == grad.size(1):
        return gradient_products(total, grad, rows, weight)
    grad, weight = grad[:, kept], weight[kept]
    if total is not None:
        total.index_add_(0, kept, (grad.t() @ rows).to(total.dtype))
    return grad @ weight


def kept_columns(grad: Tensor) -> Tensor:
    """Return the classes whose gradient in `grad` [n, M] matters in its dtype: int64 indices.

    A class is left out if its entries are at most ε times the largest entry g of the chunk. ε is
    the resolution of the dtype (2^-23 for float32, 2^-7 for bfloat16): added to g, such an entry
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
