"""Measure how sharp Mixtape's gates are, by the frequency of the word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from highrank_plugins.heads import Head


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
        head: one whose weights depend on the class, such as a Mixtape with K > 1.
        features: [..., F].
        ends: where groups of the S frequent classes end: (100,) makes [0, 100) and [100, S).
        tokens: that are computed at once; K · S numbers each.
    Returns:
        one entry per group of frequent classes, then the rare ones [S, M), which share a gate;
        a side without classes (S = 0, S = M) has no entry.
    Raises:
        ValueError: another head, K = 1, no features, ends that do not increase within (0, S).
    """
    flat = head.flatten_features(features)
    if not len(flat):
        raise ValueError("gate_sharpness: no features")
    tensors = head.tensors()
    first = head.class_gates(flat[:1], tensors)
    if first is None:
        raise ValueError(f"gate_sharpness is for a Mixtape with K > 1, got {head}")
    frequent = first.size(-1) - 1
    edges = [0, *ends, frequent] if frequent else [0]
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"ends must increase within (0, {frequent}), got {list(ends)}")
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
