"""Compute what trainers of language models ask of each token, at a temperature."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from highrank_plugins.heads.base import Head
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within


def token_statistics(
    head: Head, features: Tensor, target: Tensor, temperature: float, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return numbers [n] of each token under softmax(scores / T); chunks are computed twice.

    Scores are logits, or log-probabilities where there are none: what a sampler divides by T, so a
    temperature tempers the mixture. Log-probabilities and entropy have gradients.
    """

    def chunk(features: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        scores = head(features, scores=True) / temperature
        log_p = scores.log_softmax(-1)
        found = {"log_probs": log_p.gather(-1, target[:, None]).squeeze(-1)}
        if "entropy" in wanted:
            p = log_p.exp()
            found["entropy"] = -(p * log_p.masked_fill(p == 0, 0)).sum(-1)
        with torch.no_grad():
            if "log_sum_sq_probs" in wanted:
                found["log_sum_sq_probs"] = (2 * log_p).logsumexp(-1)
            if "mean_logits" in wanted:
                found["mean_logits"] = scores.mean(-1)
            if "is_top1" in wanted:
                found["is_top1"] = scores.argmax(-1) == target
        names[:] = found
        return tuple(found.values())

    names: list[str] = []
    width = max(head.floats_per_token(), 4 * head.num_classes)
    size = tokens_within(features, width, None)
    parts = [
        checkpoint(chunk, features[a:b], target[a:b], use_reentrant=False)
        for a, b in chunk_ranges(0, len(target), size)
    ]
    return dict(zip(names, map(torch.cat, zip(*parts, strict=True)), strict=True))
