"""How much of the logits' gradient reaches the features."""

from __future__ import annotations

import torch
from torch import Tensor

from .blocks import chunks


def gradient_retention(weight: Tensor, logit_gradient: Tensor, per_token: bool = False) -> Tensor:
    """‖G P‖ / ‖G‖, with P the orthogonal projector of R^M onto the column space of W.

    Features g have logits W g, so that a gradient reaches them through Wᵀ only: what is orthogonal
    to the d columns of W is lost, whatever the trunk (Godey and Artzi 2026). 1 − this is the share
    of the norm that the layer loses.

    Args:
        weight: W [M, d] of any rank.
        logit_gradient: G [n, M], e.g. softmax − one-hot, a row per token.
        per_token: the ratio of each row, instead of that of the whole batch (Frobenius norms).
    Returns:
        [], in [0, 1], float64; per token [n], NaN where a row is zero.
    Raises:
        ValueError: shapes that do not fit, values that are not finite, a batch whose gradient is
            zero.
    """
    if weight.dim() != 2 or logit_gradient.dim() != 2 or logit_gradient.size(1) != weight.size(0):
        raise ValueError(
            f"expected weight [M, d] and logit_gradient [n, M], got {tuple(weight.shape)} and "
            f"{tuple(logit_gradient.shape)}"
        )
    if not (weight.isfinite().all() and logit_gradient.isfinite().all()):
        raise ValueError("weight or logit_gradient has entries that are not finite")
    basis = _column_basis(weight.detach().double())
    kept, whole = [], []
    for part in chunks(logit_gradient.detach()):
        wide = part.double()
        kept.append((wide @ basis).norm(dim=-1))
        whole.append(wide.norm(dim=-1))
    kept_n, whole_n = torch.cat(kept), torch.cat(whole)
    if per_token:
        return kept_n / whole_n
    if not whole_n.any():
        raise ValueError("logit_gradient is zero everywhere")
    return kept_n.norm() / whole_n.norm()


def _column_basis(weight: Tensor) -> Tensor:
    """Orthonormal basis [M, r] of the column space, r the numerical rank."""
    left, values, _ = torch.linalg.svd(weight, full_matrices=False)
    tolerance = values[0] * max(weight.shape) * torch.finfo(weight.dtype).eps
    return left[:, values > tolerance]
