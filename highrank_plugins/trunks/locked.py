"""Dropout whose mask is shared: by all time steps, or by all occurrences of a word."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from highrank_plugins.common.dropout_masks import dropout_mask


def locked_dropout(x: Tensor, p: float) -> Tensor:
    """x [T, B, D] times one mask [1, B, D] of zeros and 1/(1 − p); x itself for p = 0."""
    if not p:
        return x
    return x * dropout_mask((1, *x.shape[1:]), p, x)


def embed_words(weight: Tensor, tokens: Tensor, p: float) -> Tensor:
    """Rows [T, B, D] of weight [M, D]; each word is dropped everywhere or nowhere.

    The mask [M, 1] is gathered like the rows, since a masked copy of the matrix would cost more
    than the batch does where the vocabulary is large.
    """
    rows = embedding(tokens, weight)
    if not p:
        return rows
    return rows * embedding(tokens, dropout_mask((weight.size(0), 1), p, weight))


def add_noise(x: Tensor, sd: float) -> Tensor:
    """x plus Gaussian noise, independent in every entry; x itself for sd = 0."""
    return x + sd * torch.randn_like(x) if sd else x
