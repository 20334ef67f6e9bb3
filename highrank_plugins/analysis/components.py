"""Measure which components of a mixture work, and how decided their prior is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from highrank_plugins.analysis.blocks import check_log_probs
from highrank_plugins.heads import Head


@dataclass(frozen=True)
class ComponentUse:
    """Use of K components over n tokens; entropies in nats, between 0 and log K.

    mean_prior: mean of π_k [K]. top_share: share of the tokens where k has the largest π [K].
    entropy: mean over tokens of −Σ_k π_k log π_k: 0 if each token has one component.
    overall_entropy: that of mean_prior: 0 if all tokens have the same one (collapse).
    """

    mean_prior: Tensor
    top_share: Tensor
    entropy: float
    overall_entropy: float


def component_use(log_prior: Tensor) -> ComponentUse:
    """Use of components from their log-priors.

    The difference overall_entropy − entropy is what the token says about the component.

    Args:
        log_prior: log π [n, K].
    Raises:
        ValueError: NaN (names the row), rows that do not sum to 1.
    """
    check_log_probs(log_prior, "log_prior")
    prior = log_prior.detach().double().exp()
    mean_prior = prior.mean(0)
    top = torch.bincount(prior.argmax(-1), minlength=prior.size(1)).double() / len(prior)
    entropy = float(torch.special.entr(prior).sum(-1).mean())
    return ComponentUse(mean_prior, top, entropy, float(torch.special.entr(mean_prior).sum()))


@torch.no_grad()
def prior_use(head: Head, features: Tensor) -> ComponentUse:
    """Return the `component_use` of a layer with a prior at features [..., F].

    Raises:
        ValueError: a head without a prior, features of another size.
    """
    flat = head.flatten_features(features)
    target = torch.zeros(len(flat), dtype=torch.int64, device=flat.device)  # without effect
    prior = None if head.weights_by_class else head.log_weights(flat, target, head.tensors())
    if prior is None:
        raise ValueError(
            f"{type(head).__name__} has no prior over components; MoS and MoC have, and Mixtape's "
            "gates are for gate_sharpness"
        )
    return component_use(prior)
