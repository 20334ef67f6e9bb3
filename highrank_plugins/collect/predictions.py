"""What a model's predictions along a text look like: ranks of the words, entropy, bands."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.analysis import Band, perplexity_by_band, target_ranks

from .collector import Collector


@dataclass(frozen=True)
class Predictions:
    """Over all tokens: perplexity, mean entropy in nats, share of words among the k most probable.

    bands: perplexity by how often the word was in the training text, as the dictionary counts it.
    uncounted: that of the tokens which the dictionary does not count (</s>, <unk>, …).
    """

    tokens: int
    perplexity: float
    nll: float
    entropy: float
    top_k_share: dict[str, float]
    bands: list[Band]
    uncounted: Band | None


def prediction_measures(
    collector: Collector, ks: Sequence[int], bands: Sequence[int]
) -> Predictions | None:
    """One pass over the text of a collector; see `target_ranks` and `perplexity_by_band`.

    Args:
        ks: of the shares. bands: where they end.
    Returns:
        None in processes other than the first.
    Raises:
        ValueError: k outside [1, M]; bands that do not increase. FloatingPointError: NaN.
    """
    classes = collector.head.num_classes
    for k in ks:
        if not 1 <= k <= classes:
            raise ValueError(f"--top {k}: there are {classes} classes")
    perplexity_by_band(torch.zeros(1), torch.ones(1), bands)  # refuses bands before the long part
    parts = collector.processes.gather(_observe(collector))
    if parts is None:
        return None
    target, nll, rank, entropy = (torch.cat(of) for of in zip(*parts, strict=True))
    counts, counted = _counts(collector.dictionary, target)
    rest = perplexity_by_band(nll[~counted], torch.zeros(int((~counted).sum())), [1])[0]
    mean = float(nll.mean())
    return Predictions(
        tokens=len(target),
        perplexity=float(nll.mean().exp()),
        nll=mean,
        entropy=float(entropy.mean()),
        top_k_share={str(k): float((rank < k).double().mean()) for k in ks},
        bands=perplexity_by_band(nll[counted], counts[counted], bands),
        uncounted=rest if rest.tokens else None,
    )


def _observe(collector: Collector) -> list[Tensor]:
    """Target, nll, rank of the target and entropy of each token, on the CPU."""
    observed = []
    for block in collector.blocks("predict"):
        log_probs, target = block.log_probs, block.target
        nll = -log_probs.gather(1, target.unsqueeze(1)).squeeze(1).double()
        entropy = torch.special.entr(log_probs.exp()).double().sum(1)
        observed.append([target, nll, target_ranks(log_probs, target), entropy])
    return [torch.cat(parts).cpu() for parts in zip(*observed, strict=True)]


def _counts(dictionary: Any, target: Tensor) -> tuple[Tensor, Tensor]:
    """How often the word of each token was seen, and whether the dictionary knows that."""
    counts = torch.tensor(dictionary.count)
    return counts[target], target >= dictionary.nspecial
