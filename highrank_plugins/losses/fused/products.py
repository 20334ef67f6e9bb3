"""Compute matrix products of gradients, and their operands."""

from __future__ import annotations

import torch
from torch import Tensor


def aligned(width: int, dtype: torch.dtype) -> int:
    """Return the least number of columns, at least `width`, that are a multiple of 16 bytes."""
    multiple = 16 // dtype.itemsize
    return -(-width // multiple) * multiple


def gradient_products(
    total: Tensor | None,
    grad: Tensor,
    rows: Tensor,
    weight: Tensor,
    is_first: bool,
    out: Tensor | None = None,
) -> Tensor:
    """Add grad^T @ rows to `total` [M, D] if there is one, and return grad @ weight.

    Args:
        out: memory for what is returned.
    """
    if total is not None:
        add_product_to(total, grad, rows, is_first)
    return torch.mm(grad, weight, out=out)


def add_product_to(total: Tensor, grad: Tensor, rows: Tensor, is_first: bool) -> None:
    """Add grad^T @ rows to `total`, which has their dtype or is wider.

    The first product overwrites `total`, whose content is arbitrary until then.
    """
    if rows.dtype == total.dtype:
        torch.addmm(total, grad.t(), rows, beta=float(not is_first), out=total)
    elif total.dtype == torch.float32 and products_add_in_float32(total.device):
        if is_first:
            torch.mm(grad.t(), rows, out_dtype=total.dtype, out=total)
        else:
            torch.addmm(total, grad.t(), rows, out_dtype=total.dtype, out=total)
    elif is_first:
        total.copy_(grad.t() @ rows)
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
