"""Skip products of classes whose gradient does not matter (`filter_gradients=True`)."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.fused.products import gradient_products


def filtered_products(
    total: Tensor | None,
    grad: Tensor,
    rows: Tensor,
    weight: Tensor,
    is_first: bool,
    out: Tensor | None = None,
) -> Tensor:
    """Do as `gradient_products` does, for some classes.

    Classes that `kept_columns` leaves out of `grad` [n, M] take part in neither.
    """
    kept = kept_columns(grad)
    if len(kept) == grad.size(1):
        return gradient_products(total, grad, rows, weight, is_first, out)
    grad, weight = grad[:, kept], weight[kept]
    if total is not None:
        if is_first:
            total.zero_()
        total.index_add_(0, kept, (grad.t() @ rows).to(total.dtype))
    return torch.mm(grad, weight, out=out)


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
