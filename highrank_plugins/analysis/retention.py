"""Measure the share of the logits' gradient that reaches the features.

Features g have logits W g, so that a gradient reaches them through Wᵀ only. Whatever is orthogonal
to the d columns of W is lost for every trunk (Godey and Artzi 2026).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from highrank_plugins.analysis.spectrum import RELIABLE, gram_matrix
from highrank_plugins.heads import Head

CLASSES = 4096  # number of rows of W in float64 at a time


class ColumnSpace(NamedTuple):
    """Hold the singular values of W [M, d] and an orthonormal basis of its columns.

    values: [d], descending, float64; accurate above 1e-7 of the largest.
    to_basis: B [d, r] with orthonormal columns of W B, r the number of values above that.
    """

    values: Tensor
    to_basis: Tensor


class RowNorms(NamedTuple):
    """Hold ‖G P‖² and ‖G‖² of each row of G [n, M], float64 [n]; P projects onto W's columns."""

    kept: Tensor
    whole: Tensor


def gradient_retention(weight: Tensor, logit_gradient: Tensor) -> Tensor:
    """Return ‖G P‖ / ‖G‖, with P the orthogonal projector of R^M onto the column space of W [M, d].

    One minus this is the share of the norm of G [n, M], e.g. softmax − one-hot, that the layer
    loses. The result is float64 in [0, 1], of Frobenius norms.
    """
    if not (weight.isfinite().all() and logit_gradient.isfinite().all()):
        raise ValueError("weight or logit_gradient has entries that are not finite")
    norms = row_norms(weight, column_space(weight).to_basis, logit_gradient.detach())
    if not norms.whole.any():
        raise ValueError("logit_gradient is zero everywhere")
    return (norms.kept.sum() / norms.whole.sum()).sqrt()


def column_space(weight: Tensor) -> ColumnSpace:
    """Return singular values and basis by WᵀW = V diag(σ²) Vᵀ and B = V diag(1/σ).

    Takes M d² + O(d³) operations and keeps nothing of size M.
    """
    squares, vectors = torch.linalg.eigh(gram_matrix([weight.detach()]))
    values = squares.clamp_min(0).sqrt()
    kept = values > RELIABLE * values[-1]
    return ColumnSpace(values.flip(0), vectors[:, kept] / values[kept])


def row_norms(weight: Tensor, to_basis: Tensor, rows: Tensor) -> RowNorms:
    """Return the squared norms of rows G [n, M]; `to_basis`: see `ColumnSpace`."""
    through = rows.new_zeros(len(rows), weight.size(1), dtype=torch.float64)
    whole = rows.new_zeros(len(rows), dtype=torch.float64)
    for part, own in zip(rows.split(CLASSES, 1), weight.detach().split(CLASSES), strict=True):
        wide = part.double()
        through.addmm_(wide, own.double())  # float64, since 1/σ magnifies errors
        whole += wide.square().sum(1)
    return RowNorms((through @ to_basis).square().sum(1), whole)


def retained_by_head(
    head: Head, to_basis: Tensor, features: Tensor, target: Tensor, numbers: int
) -> RowNorms:
    """Return the norms of the gradient of each logit vector: K adjacent rows for each token.

    At most `numbers` logits of the features [n, F] are in memory at a time.
    """
    size = max(1, numbers // (getattr(head, "components", 1) * head.num_classes))
    found = [
        row_norms(head.weight, to_basis, logit_gradient(head, some, words).flatten(0, 1))
        for some, words in zip(features.split(size), target.split(size), strict=True)
    ]
    return RowNorms(*(torch.cat(parts) for parts in zip(*found, strict=True)))


@torch.enable_grad()
def logit_gradient(head: Head, features: Tensor, target: Tensor) -> Tensor:
    """Return ∂ Σ_n −log P(target_n) / ∂z, where z_k are the K logit vectors of a token.

    `Head.logit_vectors` and `Head.nll_of_logits` define z [n, K, M] of features [..., F]. If z is
    W h_k + b, its gradient reaches h_k through Wᵀ alone, and `gradient_retention` of these rows is
    the share that W lets through. Dropout and noise are off, and the gradients of parameters are
    left alone.
    """
    flat = head.flatten_features(features).detach()
    tensors = {name: tensor.detach() for name, tensor in head.tensors().items()}
    z = head.logit_vectors(flat, tensors).detach().requires_grad_()
    nll = head.nll_of_logits(z, target.reshape(-1), flat, tensors)
    (gradient,) = torch.autograd.grad(nll.sum(), z)
    return gradient
