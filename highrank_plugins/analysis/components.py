"""Describe the parts of a layer: a mixture's components and gates, a learned pointwise function."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from highrank_plugins.analysis.predictions import check_log_probs
from highrank_plugins.heads import Head
from highrank_plugins.heads.pointwise import Pointwise


@dataclass(frozen=True)
class ComponentUse:
    """Hold the use of K components over n tokens; entropies in nats, between 0 and log K.

    mean_prior: mean of π_k [K]. top_share: share of the tokens where k has the largest π [K].
    entropy: mean over tokens of −Σ_k π_k log π_k: 0 if each token has one component.
    overall_entropy: entropy of mean_prior: 0 if all tokens have the same one (collapse).
    """

    mean_prior: Tensor
    top_share: Tensor
    entropy: float
    overall_entropy: float


def component_use(log_prior: Tensor) -> ComponentUse:
    """Return the use of components from their log-priors log π [n, K].

    overall_entropy − entropy is the information that the token gives about the component.
    """
    check_log_probs(log_prior, "log_prior")
    prior = log_prior.detach().double().exp()
    mean_prior = prior.mean(0)
    top = torch.bincount(prior.argmax(-1), minlength=prior.size(1)).double() / len(prior)
    entropy, overall = (torch.special.entr(p).sum(-1).mean() for p in (prior, mean_prior))
    return ComponentUse(mean_prior, top, float(entropy), float(overall))


class GateSharpness(NamedTuple):
    """Hold means over tokens and over the classes first ≤ x < last.

    entropy: of π_x, in nats, between 0 (one component) and log K. largest: of max_k π_{x,k}.
    """

    first: int
    last: int
    entropy: float
    largest: float


@torch.no_grad()
def gate_sharpness(
    head: Head, features: Tensor, ends: Sequence[int] = (), tokens: int = 16
) -> list[GateSharpness]:
    """Return the sharpness of the gates of frequent classes, in groups, and of all rare ones.

    Args:
        ends: where groups of the S frequent classes end: (100,) makes [0, 100) and [100, S).
        tokens: number computed at once; K · S numbers each.
    Returns:
        one entry per group of frequent classes, then the rare ones [S, M), which share a gate;
        a side without classes (S = 0, S = M) has no entry.
    """
    flat = head.flatten_features(features)
    tensors = head.tensors()
    first = head.class_gates(flat[:1], tensors)
    assert first is not None, "gate_sharpness needs gates per class"
    frequent = first.size(-1) - 1
    edges = [0, *ends, frequent] if frequent else [0]
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(
            f"ends must increase within (0, {frequent}), got {list(ends)}; there are {frequent} "
            "frequent classes"
        )
    sums = torch.zeros(2, frequent + 1, dtype=torch.float64, device=flat.device)
    for part in flat.split(tokens):
        gates = head.class_gates(part, tensors)
        assert gates is not None
        sums[0] += torch.special.entr(gates).sum(1).sum(0)
        sums[1] += gates.amax(1).sum(0)
    means = sums / len(flat)
    groups = [
        GateSharpness(low, high, *means[:, low:high].mean(1).tolist())
        for low, high in pairwise(edges)
    ]
    if frequent < head.num_classes:
        groups.append(GateSharpness(frequent, head.num_classes, *means[:, -1].tolist()))
    return groups


class SlopeStatistics(NamedTuple):
    """Hold statistics of the Q slopes of a PLIF; sd divides by Q."""

    mean: float
    sd: float
    smallest: float
    largest: float


def slope_statistics(pointwise: Pointwise) -> SlopeStatistics:
    """Return mean, deviation and range of a PLIF's slopes, which Ganea et al. 2019 print."""
    slopes = pointwise.slopes()
    assert slopes is not None, "slope_statistics needs a piecewise linear function"
    found = (slopes.mean(), slopes.std(correction=0), slopes.min(), slopes.max())
    return SlopeStatistics(*map(float, found))


@torch.no_grad()
def pointwise_curve(
    pointwise: Pointwise, low: float = -20.0, high: float = 20.0, points: int = 401
) -> tuple[Tensor, Tensor]:
    """Return z [points] from low to high, and f(z), shifted so that f is 0 where z is nearest to 0.

    A constant added to f changes no probability. The shift makes functions comparable in a plot.
    """
    z = torch.linspace(low, high, points, dtype=torch.float64)
    f = pointwise(z)
    return z, f - f[z.abs().argmin()]
