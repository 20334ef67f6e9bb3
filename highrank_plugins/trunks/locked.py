"""Dropout whose mask is shared: by all time steps, or by all occurrences of a word."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding


def locked_dropout(x: Tensor, p: float) -> Tensor:
    """x [T, B, D] times one mask [1, B, D] of zeros and 1/(1 − p); x itself for p = 0."""
    if not p:
        return x
    mask = x.new_empty(1, *x.shape[1:]).bernoulli_(1 - p)
    return x * mask.div_(1 - p)


def embed_words(weight: Tensor, tokens: Tensor, p: float) -> Tensor:
    """Rows [T, B, D] of weight [M, D]; each word is dropped everywhere or nowhere.

    The mask [M, 1] is gathered like the rows, since a masked copy of the matrix would cost more
    than the batch does where the vocabulary is large.
    """
    rows = embedding(tokens, weight)
    if not p:
        return rows
    mask = weight.new_empty(weight.size(0), 1).bernoulli_(1 - p)
    return rows * embedding(tokens, mask.div_(1 - p))


def add_noise(x: Tensor, sd: float) -> Tensor:
    """x plus Gaussian noise, independent in every entry; x itself for sd = 0."""
    return x + sd * torch.randn_like(x) if sd else x
