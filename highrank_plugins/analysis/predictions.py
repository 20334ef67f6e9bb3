"""Describe single predictions: the rank of the true word, and the entropy."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.analysis.blocks import check_log_probs, chunks


def target_ranks(log_probs: Tensor, target: Tensor) -> Tensor:
    """Return how many classes come before the target, most probable first; 0 if it is on top.

    Equally probable classes are taken in the order of their ids.

    Args:
        log_probs: [n, M].
        target: int64 [n] in [0, M).
    Returns:
        int64 [n].
    Raises:
        ValueError: NaN (names the row), rows that do not sum to 1, other shapes, ids out of range.
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


def top_k_share(log_probs: Tensor, target: Tensor, k: int) -> float:
    """Share of the tokens whose target is among the k most probable classes, in [0, 1].

    Raises:
        ValueError: k outside [1, M], and what `target_ranks` refuses.
    """
    ranks = target_ranks(log_probs, target)
    if not 1 <= k <= log_probs.size(1):
        raise ValueError(f"k must lie in [1, {log_probs.size(1)}], got {k}")
    return float((ranks < k).double().mean())


def mean_entropy(log_probs: Tensor) -> float:
    """Return the mean over rows [n, M] of −Σ_x P(x) log P(x), in nats.

    Raises:
        ValueError: NaN (names the row), rows that do not sum to 1.
    """
    check_log_probs(log_probs, "log_probs")
    total = sum(float(torch.special.entr(part.double().exp()).sum()) for part in chunks(log_probs))
    return total / len(log_probs)
