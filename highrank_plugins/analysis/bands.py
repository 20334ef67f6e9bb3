"""Compute the perplexity of rare and of frequent words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from highrank_plugins.analysis.perplexity import perplexity_of


class Band(NamedTuple):
    """Hold the tokens whose word was seen low ≤ count < high times in training (None: no end).

    perplexity: exp of their mean negative log-likelihood; None without tokens.
    """

    low: int
    high: int | None
    tokens: int
    perplexity: float | None


def perplexity_by_band(nll: Tensor, counts: Tensor, bands: Sequence[int]) -> list[Band]:
    """Return the perplexity of the tokens in each band of training frequency.

    Args:
        nll: negative log-likelihoods in nats [n].
        counts: how often the word of each token was seen in training [n]:
            `count_of_class[target]`.
        bands: where bands end, increasing, above 0: (10, 100) is [0, 10), [10, 100), [100, ∞).
    Returns:
        one `Band` more than there are ends; every token is in exactly one.
    Raises:
        ValueError: shapes that differ, NaN, a negative count, ends that do not increase.
    """
    if nll.dim() != 1 or nll.shape != counts.shape:
        raise ValueError(
            f"nll and counts: expected two vectors of one length, got {tuple(nll.shape)} and "
            f"{tuple(counts.shape)}"
        )
    if nll.isnan().any():
        raise ValueError(f"nll: token {int(nll.isnan().nonzero()[0])} is NaN")
    if (counts < 0).any():
        raise ValueError(f"counts: token {int((counts < 0).nonzero()[0])} has a negative count")
    edges = [0, *bands]
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"bands: ends must increase and lie above 0, got {list(bands)}")
    return [_band(nll, counts, low, high) for low, high in zip(edges, [*bands, None], strict=True)]


def _band(nll: Tensor, counts: Tensor, low: int, high: int | None) -> Band:
    inside = counts >= low
    if high is not None:
        inside &= counts < high
    tokens = int(inside.sum())
    if not tokens:
        return Band(low, high, 0, None)
    return Band(low, high, tokens, perplexity_of(float(nll[inside].double().mean())))
