"""How far predictions lie from each other, within a model and between two."""

from dataclasses import dataclass

import torch
from torch import Tensor

from highrank_plugins.analysis import Estimate
from highrank_plugins.analysis.divergence import (
    PredictionSums,
    drawn_pairs,
    mean_kld_of_sums,
    row_kld,
)
from highrank_plugins.heads import Head

from .collector import Collector

NUMBERS = 2**22  # of log-probabilities that are held at a time


@dataclass(frozen=True)
class Divergences:
    """KL(P_i ‖ Q_j) in nats, i and j contexts of the text; Q is P where there is one model.

    sampled: mean over drawn pairs. all_pairs: over all; None if not asked for. matched: of
    KL(P_i ‖ Q_i), two models in the same context; None with one.
    """

    contexts: int
    sampled: Estimate | None
    all_pairs: float | None
    matched: Estimate | None


def divergences(
    collector: Collector,
    other: Collector | None = None,
    pairs: int | None = 10_000,
    seed: int = 0,
) -> Divergences | None:
    """The mean divergence of predictions along a text, see `sampled_kld`.

    Args:
        other: Q's, of the same text and classes.
        pairs: that are drawn, with replacement; None: the mean over all N² pairs, exactly.
        seed: of the draws.
    Returns:
        None in processes other than the first.
    Raises:
        ValueError: other words, another text, fewer than two pairs. FloatingPointError: NaN.
    """
    if pairs is not None and pairs < 2:
        raise ValueError(f"--pairs {pairs}: a standard error needs at least 2")
    if pairs is None:
        return _all_pairs(collector, other)
    own = _features(collector)
    its = None if other is None else _features(other)
    if own is None:
        return None
    if other is None or its is None:
        sampled = _sampled(collector.head, own[0], collector.head, own[0], pairs, seed)
        return Divergences(len(own[0]), sampled, None, None)
    matched = _matched(collector, other, own, its)
    sampled = _sampled(collector.head, own[0], other.head, its[0], pairs, seed)
    return Divergences(len(own[0]), sampled, None, matched)


def _all_pairs(collector: Collector, other: Collector | None) -> Divergences | None:
    own = _sums(collector)
    if other is None:
        return (
            None if own is None else Divergences(own.rows, None, mean_kld_of_sums(own, own), None)
        )
    its = _sums(other)
    read, its_read = _features(collector), _features(other)
    if own is None or its is None or read is None or its_read is None:
        return None
    matched = _matched(collector, other, read, its_read)
    return Divergences(own.rows, None, mean_kld_of_sums(own, its), matched)


Read = tuple[Tensor, Tensor]


def _matched(p: Collector, q: Collector, own: Read, its: Read) -> Estimate:
    """KL(P_i ‖ Q_i), of what `_features` finds."""
    _check_same(p, q, own[1], its[1])
    every = torch.arange(len(own[0]))
    return _mean_of(p.head, own[0], every, q.head, its[0], every)


def _sums(collector: Collector) -> PredictionSums | None:
    part = PredictionSums.of(block.log_probs for block in collector.blocks("predict"))
    parts = collector.processes.gather(part)
    return None if parts is None else sum(parts[1:], parts[0])


def _features(collector: Collector) -> Read | None:
    """What the layer reads at every token [N, F], and the words [N]: small beside log P."""
    blocks = [(block.features, block.target) for block in collector.blocks("predict")]
    own = [torch.cat(of) for of in zip(*blocks, strict=True)]
    parts = collector.processes.gather(own)
    if parts is None:
        return None
    device = own[0].device
    features, target = (torch.cat([p.to(device) for p in of]) for of in zip(*parts, strict=True))
    return features, target


def _check_same(p: Collector, q: Collector, words: Tensor, other_words: Tensor) -> None:
    if p.dictionary != q.dictionary:
        raise ValueError(
            "the two checkpoints have other dictionaries: their classes are not the same words"
        )
    if not torch.equal(words.cpu(), other_words.cpu()):
        raise ValueError(
            "the two checkpoints read other contexts of the split (their --tokens-per-sample or "
            "--sample-break-mode differ, or their kind): they cannot be matched"
        )


def _sampled(p: Head, x: Tensor, q: Head, y: Tensor, pairs: int, seed: int) -> Estimate:
    first, second = drawn_pairs(len(x), len(y), pairs, seed)
    return _mean_of(p, x, first, q, y, second)


@torch.no_grad()
def _mean_of(p: Head, x: Tensor, first: Tensor, q: Head, y: Tensor, second: Tensor) -> Estimate:
    size = max(1, NUMBERS // p.num_classes)
    values = torch.cat(
        [
            row_kld(p.log_probs(x[i.to(x.device)]), q.log_probs(y[j.to(y.device)]))
            for i, j in zip(first.split(size), second.split(size), strict=True)
        ]
    )
    if values.isnan().any():
        raise FloatingPointError("log-probabilities are NaN: the checkpoint has diverged")
    return Estimate.of(values)
