"""Describe predictions: rank of the true word, entropy, and perplexity by word frequency.

Log-probabilities are floats [n, M] whose rows sum to 1; −∞ is allowed, and NaN is refused.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from highrank_plugins.analysis.spectrum import chunks, described, is_matrix, refuse_rows

SUM_TOLERANCE = 0.05  # rows stored in bfloat16 sum to 1 within 0.02


def check_log_probs(log_probs: Tensor, name: str) -> None:
    """Refuse log-probabilities [n, M] that are no floats, hold NaN or do not sum to 1."""
    if not is_matrix(log_probs) or not len(log_probs):
        raise ValueError(
            f"{name}: expected log-probabilities [n, M] with n ≥ 1, got {described(log_probs)}"
        )
    refuse_rows(~log_probs.isnan(), name, log_probs)
    log_sums = torch.cat([part.float().logsumexp(-1) for part in chunks(log_probs)])
    wrong = log_sums.abs() > SUM_TOLERANCE
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{name}, row {row}: the probabilities sum to {float(log_sums[row].exp()):.6g}; "
            "pass log-probabilities, e.g. logits.log_softmax(-1)"
        )


def target_ranks(log_probs: Tensor, target: Tensor) -> Tensor:
    """Return how many classes rank above the target, int64 [n]; 0 if it is the most probable one.

    Equally probable classes are taken in the order of their ids. Targets are int64 [n] in [0, M).
    """
    check_log_probs(log_probs, "log_probs")
    classes = log_probs.size(1)
    if target.shape != log_probs.shape[:1] or target.is_floating_point():
        raise ValueError(
            f"target: expected class ids [{len(log_probs)}], got {target.dtype} of shape "
            f"{tuple(target.shape)}"
        )
    if target.min() < 0 or target.max() >= classes:
        raise ValueError(
            f"target: ids must lie in [0, {classes}), got {int(target.min())} to "
            f"{int(target.max())}; leave ignored tokens out"
        )
    ids = torch.arange(classes, device=target.device)
    ranks, start = [], 0
    for part in chunks(log_probs):
        own_id = target[start : start + len(part)].unsqueeze(-1)
        own = part.gather(-1, own_id)
        ranks.append(((part > own) | ((part == own) & (ids < own_id))).sum(-1))
        start += len(part)
    return torch.cat(ranks)


def perplexity_of(nats: float) -> float:
    """Return exp of a mean negative log-likelihood; infinite where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf


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
        nll: in nats [n]. counts: how often the word of each token was seen in training [n].
        bands: where bands end, increasing, above 0: (10, 100) is [0, 10), [10, 100), [100, ∞).
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
    found = perplexity_of(float(nll[inside].double().mean())) if inside.any() else None
    return Band(low, high, int(inside.sum()), found)
