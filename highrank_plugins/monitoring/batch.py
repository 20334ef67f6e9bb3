"""Measures of a head on a batch of its training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..analysis import component_use, gate_sharpness
from ..analysis.head_gradient import LAYERS
from ..heads import Head, Mixtape
from ..heads.draws import ChunkDraws
from ..heads.prior_mixture import PriorMixture
from ..heads.sigmoid_tree import probabilities
from .kept_gradient import kept_and_whole, tokens_at_a_time

TOKENS = 64  # of a batch, for what costs as much as the loss
NUMBERS = 2**22  # of logits that exist at a time


def scored(
    features: Tensor, target: Tensor, ignore_index: int | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The tokens that count: features [n, F] in `dtype`, without graph, and targets [n]."""
    flat, words = features.detach().reshape(-1, features.size(-1)), target.reshape(-1)
    if ignore_index is not None:
        counted = words != ignore_index
        flat, words = flat[counted], words[counted]
    return flat.to(dtype), words


def spread(features: Tensor, target: Tensor, most: int = TOKENS) -> tuple[Tensor, Tensor]:
    """At most `most` of the tokens, evenly from first to last: no random number is drawn."""
    count = len(target)
    if count <= most:
        return features, target
    chosen = torch.arange(most, device=target.device) * count // most
    return features[chosen], target[chosen]


def mixture_weights(head: Head, features: Tensor, target: Tensor) -> Tensor | None:
    """log π [n, K] of each token: the prior of MoS and MoC, Mixtape's gates of the target class.

    None for layers without components, or with one.
    """
    if getattr(head, "components", 1) == 1:
        return None
    if isinstance(head, PriorMixture):
        return head.log_prior(features, head.tensors())
    if isinstance(head, Mixtape):
        return _gates_of(head, *spread(features, target)).log()
    return None


def _gates_of(head: Mixtape, features: Tensor, target: Tensor) -> Tensor:
    """π_x [n, K] of x = target, in float64."""
    tensors, draws = head.tensors(), ChunkDraws()
    parts = []
    size = tokens_at_a_time(head, NUMBERS)
    for some, words in zip(features.split(size), target.split(size), strict=True):
        inputs = head.token_inputs(some, tensors, draws)
        own = head.class_gate_logits(inputs, tensors, draws)
        logits = torch.cat((own, inputs["shared"].unsqueeze(-1)), -1)  # rare classes share the last
        column = words.clamp_max(head.frequent).view(-1, 1, 1).expand(-1, logits.size(1), 1)
        parts.append(probabilities(logits.gather(-1, column).double()).squeeze(-1))
    return torch.cat(parts)


def sharpness(head: Head, features: Tensor, target: Tensor) -> dict[str, float]:
    """Entropy and largest gate of a Mixtape's frequent and rare classes; nothing of others."""
    if not isinstance(head, Mixtape) or head.components == 1:
        return {}
    found = {}
    for group in gate_sharpness(head, spread(features, target)[0]):
        name = "frequent" if group.first < head.frequent else "rare"
        found[f"gate_entropy_{name}"] = group.entropy
        found[f"gate_largest_{name}"] = group.largest
    return found


def use_of_components(log_weights: Tensor) -> tuple[dict[str, float], Tensor]:
    """Scalars from log π [n, K], and the share of each component [K], which add up to 1."""
    use = component_use(log_weights)
    scalars = {
        "component_entropy": use.entropy,
        "component_entropy_overall": use.overall_entropy,
        "component_least": len(use.mean_prior) * float(use.mean_prior.min()),
    }
    return scalars, use.mean_prior


def retention(head: Head, to_basis: Tensor, features: Tensor, target: Tensor) -> dict[str, float]:
    """‖G P‖/‖G‖ of the logits' gradient G of some tokens; nothing for unknown layers."""
    if not isinstance(head, LAYERS):
        return {}
    kept, whole = kept_and_whole(head, to_basis, *spread(features, target), NUMBERS)
    return {"gradient_retention": math.sqrt(kept / whole)} if whole else {}
