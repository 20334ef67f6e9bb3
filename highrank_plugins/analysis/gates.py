"""How sharp Mixtape's gates are, by the frequency of the word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..heads import Head, Mixtape
from ..heads.draws import ChunkDraws
from ..heads.sigmoid_tree import probabilities


class GateSharpness(NamedTuple):
    """Gates of the classes first ≤ x < last: means over tokens and classes.

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
    """Sharpness of the gates of frequent classes, in groups, and of those of all rare ones.

    Args:
        head: a Mixtape with K > 1.
        features: [..., F].
        ends: where groups of the S frequent classes end: (100,) makes [0, 100) and [100, S).
        tokens: that are computed at once; K · S numbers each.
    Returns:
        one entry per group of frequent classes, then the rare ones [S, M), which share a gate;
        a side without classes (S = 0, S = M) has no entry.
    Raises:
        ValueError: another head, K = 1, no features, ends that do not increase within (0, S).
    """
    if not isinstance(head, Mixtape) or head.components == 1:
        raise ValueError(f"gate_sharpness is for a Mixtape with K > 1, got {head}")
    flat = head.flatten_features(features)
    if not len(flat):
        raise ValueError("gate_sharpness: no features")
    edges = [0, *ends, head.frequent] if head.frequent else [0]
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"ends must increase within (0, {head.frequent}), got {list(ends)}")
    sums = torch.zeros(2, head.frequent + 1, dtype=torch.float64, device=flat.device)
    for part in flat.split(tokens):
        gates = _gate_probabilities(head, part)
        sums[0] += torch.special.entr(gates).sum(1).sum(0)
        sums[1] += gates.amax(1).sum(0)
    means = sums / len(flat)
    groups = [
        GateSharpness(low, high, *means[:, low:high].mean(1).tolist())
        for low, high in pairwise(edges)
    ]
    if head.frequent < head.num_classes:
        groups.append(GateSharpness(head.frequent, head.num_classes, *means[:, -1].tolist()))
    return groups


def _gate_probabilities(head: Mixtape, features: Tensor) -> Tensor:
    """π [n, K, S + 1] in float64: of each frequent class, and last of the rare ones."""
    tensors, draws = head.tensors(), ChunkDraws()
    inputs = head.token_inputs(features, tensors, draws)
    own = head.class_gate_logits(inputs, tensors, draws)
    return probabilities(torch.cat((own, inputs["shared"].unsqueeze(-1)), -1).double())
