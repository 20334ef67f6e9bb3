"""A head in numbers, at one update of its training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..analysis import slope_statistics, spectral_entropy
from ..heads import Head
from ..heads.pointwise import PLIF
from .batch import mixture_weights, retention, scored, sharpness, use_of_components
from .column_space import column_space


@dataclass
class Snapshot:
    """What was measured, by name; the names are listed in docs/monitoring.md.

    scalars: for a line of a log. histograms: [n] each. component_use: share of each component [K],
    None where there is one component or no batch.
    """

    scalars: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Tensor] = field(default_factory=dict)
    component_use: Tensor | None = None


@torch.no_grad()
def take_snapshot(
    head: Head,
    features: Tensor | None = None,
    target: Tensor | None = None,
    ignore_index: int | None = None,
) -> Snapshot:
    """Measure a head; of a batch only if there is one.

    Draws no random number and changes nothing: neither parameters nor their gradients, nor the
    graph of the features. Dropout and noise of the head are off.

    Args:
        features: [..., F], of any floating dtype. target: int64 [...].
        ignore_index: tokens with this target do not count.
    Raises:
        ValueError: a parameter or a feature is not finite.
    """
    for name, parameter in head.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(f"{name} of the head is not finite")
    # half precision of autocast is for speed; here it would only blur
    with torch.autocast(head.weight.device.type, enabled=False):
        snapshot = Snapshot()
        to_basis = _measure_vocabulary(head, snapshot)
        _measure_slopes(head, snapshot)
        if features is not None and target is not None:
            batch = scored(features, target, ignore_index, head.weight.dtype)
            if len(batch[1]):
                _measure_batch(head, *batch, to_basis, snapshot)
    return snapshot


def _measure_vocabulary(head: Head, snapshot: Snapshot) -> Tensor:
    values, to_basis = column_space(head.weight)
    entropy = spectral_entropy(values)
    snapshot.scalars |= {"spectral_entropy": entropy, "effective_rank": math.exp(entropy)}
    snapshot.histograms["singular_values"] = values
    return to_basis


def _measure_slopes(head: Head, snapshot: Snapshot) -> None:
    if isinstance(head.pointwise, PLIF):
        found = slope_statistics(head.pointwise)._asdict()
        snapshot.scalars |= {f"slope_{name}": value for name, value in found.items()}
        snapshot.histograms["slopes"] = head.pointwise.tensors()["slopes"]


def _measure_batch(
    head: Head, features: Tensor, target: Tensor, to_basis: Tensor, snapshot: Snapshot
) -> None:
    if not features.isfinite().all():
        raise ValueError("a feature is not finite")
    log_weights = mixture_weights(head, features, target)
    if log_weights is not None:
        scalars, snapshot.component_use = use_of_components(log_weights)
        snapshot.scalars |= scalars
    snapshot.scalars |= sharpness(head, features, target)
    snapshot.scalars |= retention(head, to_basis, features, target)
