"""How the spectrum of the vocabulary matrix changes from checkpoint to checkpoint of a training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import torch

from highrank_plugins.analysis import effective_rank, spectral_entropy, spectrum

from .loading import build, open_checkpoint, pick_device
from .output_layer import head_of

EPSILON = 1e-2


@dataclass(frozen=True)
class Saturation:
    """The singular values of W [M, d] after so many updates (None: the file does not say).

    flat_divergence: log d − H in nats, the KL divergence of σ_i / Σ_j σ_j from a flat spectrum; it
    jumps when a narrow model saturates (Godey et al. 2024). effective_rank: of ε = 1e-2.
    """

    checkpoint: str
    updates: int | None
    spectral_entropy: float
    flat_divergence: float
    effective_rank: int
    largest: float


def saturation(checkpoints: Sequence[Path], data: str) -> list[Saturation]:
    """One measure per checkpoint, by updates; one checkpoint is in memory at a time.

    Raises:
        ValueError, OSError: see `Collector`.
    """
    return sorted(_measures(checkpoints, data), key=lambda found: found.updates or 0)


def _measures(checkpoints: Sequence[Path], data: str) -> Iterator[Saturation]:
    for path in checkpoints:
        checkpoint = open_checkpoint(path, data)
        model, _ = build(checkpoint, pick_device("cpu"))
        weight = head_of(model, str(path)).weight.detach()
        if not weight.isfinite().all():
            raise ValueError(f"{path}: the vocabulary matrix is not finite: training has diverged")
        values = spectrum([weight.double()], torch.float64).values
        entropy = spectral_entropy(values)
        yield Saturation(
            checkpoint=str(path),
            updates=_updates(checkpoint.state),
            spectral_entropy=entropy,
            flat_divergence=log(len(values)) - entropy,
            effective_rank=effective_rank(values, EPSILON),
            largest=float(values[0]),
        )


def _updates(state: dict[str, Any]) -> int | None:
    history = state.get("optimizer_history") or [{}]
    found = history[-1].get("num_updates")
    return None if found is None else int(found)
