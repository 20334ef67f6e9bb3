"""Measure a head at one update of its training run."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.heads import Head
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import MonitoredBatch, Snapshot


@torch.no_grad()
def take_snapshot(
    head: Head,
    features: Tensor | None = None,
    target: Tensor | None = None,
    ignore_index: int | None = None,
) -> Snapshot:
    """Return the numbers of all registered measures for a head in training, and a batch if given.

    It draws no random number and changes neither parameters nor their gradients, nor the graph of
    the features. Dropout and noise of the head are off.

    Args:
        features: [..., F], of any floating dtype. target: int64 [...].
        ignore_index: tokens with this target do not count.
    """
    for name, parameter in head.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(f"{name} of the head is not finite")
    # half precision under autocast would lose digits
    with torch.autocast(head.weight.device.type, enabled=False):
        batch = _batch(head, features, target, ignore_index)
        snapshot = Snapshot()
        for measure in all_measures().values():
            snapshot.add(measure.monitor(batch))
    return snapshot


def _batch(
    head: Head, features: Tensor | None, target: Tensor | None, ignore_index: int | None
) -> MonitoredBatch:
    """Return the tokens that count, in the head's dtype and without graph."""
    if features is None or target is None:
        return MonitoredBatch(head)
    flat, words = features.detach().reshape(-1, features.size(-1)), target.reshape(-1)
    if ignore_index is not None:
        counted = words != ignore_index
        flat, words = flat[counted], words[counted]
    if not len(words):
        return MonitoredBatch(head)
    flat = flat.to(head.weight.dtype)
    if not flat.isfinite().all():
        raise ValueError("a feature is not finite")
    return MonitoredBatch(head, flat, words)
