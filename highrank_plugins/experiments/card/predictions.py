"""What a model's predictions along a text tell, for a card."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from highrank_plugins.analysis import (
    gate_sharpness,
    gradient_retention,
    mean_entropy,
    mean_pairwise_kld,
    perplexity_by_band,
    perplexity_of,
    prior_use,
    sampled_kld,
    target_ranks,
)
from highrank_plugins.analysis.head_gradient import logit_gradient
from highrank_plugins.experiments.card.contents import (
    BandFound,
    Divergence,
    Gates,
    Predictions,
    PriorUse,
    Retention,
)
from highrank_plugins.experiments.card.corpus import Seen
from highrank_plugins.experiments.card.subject import Subject
from highrank_plugins.heads import Head, Mixtape
from highrank_plugins.heads.prior_mixture import PriorMixture

TOP_K = (1, 5, 10, 100)
BANDS = (10, 100, 1000, 10_000)  # training counts
GROUPS = (10, 100, 1000)  # of Mixtape's frequent words, most frequent first
RETAINED, GATED = 256, 512  # tokens whose logits' gradients, and gates, are computed
NUMBERS = 2**26  # that these gradients may have
QUANTILES = (0.05, 0.5, 0.95)


def predictions(seen: Seen) -> Predictions:
    """Perplexity, entropy and top-k shares.

    Raises:
        ValueError: NaN among the log-probabilities.
    """
    ranks = target_ranks(seen.log_probs, seen.target)
    nll = float(_nll(seen).mean())
    shares = {
        str(k): float((ranks < k).double().mean()) for k in TOP_K if k <= seen.log_probs.size(1)
    }
    return Predictions(len(ranks), perplexity_of(nll), nll, mean_entropy(seen.log_probs), shares)


def divergence(seen: Seen) -> Divergence:
    """Mean KLD between predictions, of sampled pairs and of all."""
    return Divergence(sampled_kld(seen.log_probs), mean_pairwise_kld([seen.log_probs]))


def retention(head: Head, seen: Seen) -> Retention:
    """Gradient retention of the first tokens, all their logit vectors together and one by one."""
    components = getattr(head, "components", 1)
    tokens = min(RETAINED, len(seen.target), max(1, NUMBERS // (components * head.num_classes)))
    gradient = logit_gradient(head, seen.features[:tokens], seen.target[:tokens]).flatten(0, 1)
    weight = head.weight.detach()
    rows = gradient_retention(weight, gradient, per_token=True)
    rows = rows[rows.isfinite()]  # a row may be zero
    quantiles = {f"{q:g}": float(rows.quantile(q)) for q in QUANTILES}
    share = float(gradient_retention(weight, gradient))
    return Retention(share, tokens, len(gradient), quantiles)


def components(head: Head, seen: Seen) -> PriorUse:
    """How MoS and MoC use their components.

    Raises:
        ValueError: not applicable to this head.
    """
    if not isinstance(head, PriorMixture):
        raise ValueError("not applicable: this layer has no prior over components (MoS, MoC have)")
    return PriorUse.of(prior_use(head, seen.features), math.log(head.components))


def gates(head: Head, seen: Seen) -> Gates:
    """How sharp Mixtape's gates are, by the frequency of the word.

    Raises:
        ValueError: not applicable to this head.
    """
    if not isinstance(head, Mixtape) or head.components == 1:
        raise ValueError("not applicable: only a Mixtape with K > 1 has gates")
    ends = [end for end in GROUPS if end < head.frequent]
    groups = gate_sharpness(head, seen.features[:GATED], ends)
    return Gates(groups, min(GATED, len(seen.features)), math.log(head.components))


def bands(subject: Subject, seen: Seen) -> list[BandFound]:
    """Perplexity by training count; symbols that dictionaries do not count are apart.

    Raises:
        ValueError: the dictionary has no counts.
    """
    first = subject.dictionary.nspecial
    counts = torch.tensor(subject.dictionary.count)
    if len(counts[first:].unique()) < 2:
        raise ValueError("the dictionary has no counts: its words have all the same one")
    nll, counted = _nll(seen), seen.target >= first
    found = [
        BandFound(_band_name(band.low, band.high), band.tokens, band.perplexity)
        for band in perplexity_by_band(nll[counted], counts[seen.target[counted]], BANDS)
    ]
    (special,) = perplexity_by_band(nll[~counted], torch.zeros(int((~counted).sum())), ())
    symbols = " ".join({subject.word(c): None for c in seen.target[~counted].unique().tolist()})
    return [*found, BandFound(symbols or "special", special.tokens, special.perplexity)]


def _band_name(low: int, high: int | None) -> str:
    return f"{low:,}+" if high is None else f"{low:,}–{high - 1:,}"


def _nll(seen: Seen) -> Tensor:
    return -seen.log_probs.gather(1, seen.target.unsqueeze(1)).squeeze(1).double()
