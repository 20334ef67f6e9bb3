"""Describe predictions: rank of the true word, entropy, and perplexity by word frequency.

Log-probabilities are floats [n, M] whose rows sum to 1; −∞ is allowed, and NaN is refused.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

SUM_TOLERANCE = 0.05  # rows stored in bfloat16 sum to 1 within 0.02


def checked_blocks(blocks: Iterable[Tensor], finite: bool = True) -> Iterator[Tensor]:
    """Yield the blocks [n_i, M] that have a row, and check each when its turn comes.

    −∞ is a valid log-probability, but a spectrum cannot use it: `finite` refuses infinities, too.
    """
    rows = 0
    for index, block in enumerate(blocks):
        refuse_rows(block.isfinite() if finite else ~block.isnan(), f"block {index}", block)
        rows += len(block)
        if len(block):
            yield block
    if not rows:
        raise ValueError("no rows: all blocks are empty; an iterator can be used only once")


def refuse_rows(good: Tensor, name: str, values: Tensor) -> None:
    """Refuse values [n, M] unless all of `good` [n, M] is true; name the first bad entry."""
    if good.all():
        return
    row = int((~good.all(1)).nonzero()[0])
    column = int((~good[row]).nonzero()[0])
    raise ValueError(
        f"{name}, row {row}: entry {column} is {float(values[row, column])}; find its cause "
        "(a diverged checkpoint, half precision) and collect again"
    )


def chunks(x: Tensor, budget: int = 2**22) -> Iterator[Tensor]:
    """Yield runs of rows of x [n, M] with at most `budget` numbers each, or one row."""
    return iter(x.split(max(1, budget // max(1, x[0].numel()))))


def check_log_probs(log_probs: Tensor, name: str) -> None:
    """Refuse log-probabilities [n, M] that hold NaN or do not sum to 1."""
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
    ids = torch.arange(log_probs.size(1), device=target.device)
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
    if nll.isnan().any() or (counts < 0).any():
        raise ValueError("nll or counts: a token is NaN, or has a negative count")
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
