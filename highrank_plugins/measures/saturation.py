"""Measure the spectrum of the vocabulary matrix, and its change along a training run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from highrank_plugins.analysis import spectrum as spectra
from highrank_plugins.common.formatting import Figure, Lines, short
from highrank_plugins.measures import base
from highrank_plugins.measures.spectrum import decay_rows, spectrum_figure

EPSILON = 1e-2


@dataclass(frozen=True)
class Saturation:
    """Hold the singular values of W [M, d].

    flat_divergence: log d − H in nats, the KL divergence of σ_i / Σ_j σ_j from a flat spectrum; it
    jumps when a narrow model saturates (Godey et al. 2024). effective_rank: of ε = 1e-2.
    """

    shape: tuple[int, int]
    spectral_entropy: float
    flat_divergence: float
    effective_rank: int
    press_rank: int
    spectral_decay: float | None
    largest: float
    singular_values: list[float]


@base.register_measure("saturation")
class SaturationMeasure(base.WeightMeasure):
    """Compute the spectrum of the vocabulary matrix.

    Several checkpoints show it along a training run (Godey et al. 2024).
    """

    title = "Spectrum of the vocabulary matrix"
    about = (
        "The Press rank counts singular values above the tolerance of the precision; the ε-rank is "
        "the least k whose k largest hold 1 − ε of the sum of squares; H is the entropy of "
        "σᵢ / Σσ. A narrow model saturates when the divergence from a flat spectrum jumps (Godey "
        "et al. 2024)."
    )
    hidden = ("singular_values",)
    of_many = True

    def measure(self, words: base.Words) -> Saturation:
        weight = base.in_float64(words.head).weight.detach()
        if not weight.isfinite().all():
            raise ValueError("the vocabulary matrix is not finite: training has diverged")
        found = spectra.spectrum([weight.double()], torch.float64)
        values, entropy = found.values, spectra.spectral_entropy(found.values)
        rank = found.press_rank()
        return Saturation(
            shape=(weight.size(0), weight.size(1)),
            spectral_entropy=entropy,
            flat_divergence=math.log(len(values)) - entropy,
            effective_rank=spectra.effective_rank(values, EPSILON),
            press_rank=rank,
            spectral_decay=spectra.spectral_decay(values, last=rank) if rank > 1 else None,
            largest=float(values[0]),
            singular_values=values.tolist(),
        )

    def figures(self, result: Saturation) -> list[Figure]:
        title = f"Vocabulary matrix: Press rank {result.press_rank:,}"
        return [spectrum_figure(result.singular_values, result.shape, "float64", title)]

    def figures_of_many(self, found: Sequence[base.Found]) -> list[Figure]:
        curve = {one["updates"]: one["flat_divergence"] for one in found if one["updates"]}
        series = {"W": (list(curve), list(curve.values()))}
        title = "Divergence of the spectrum of W from a flat one"
        return [Lines(series, title, ("updates", "log d − H, nats"))]

    def rows(self, result: Saturation) -> base.Rows:
        return [
            ("matrix", f"{result.shape[0]:,} words × {result.shape[1]:,} dimensions"),
            ("Press rank, float64", f"{result.press_rank:,}"),
            (f"ε-rank, {EPSILON:g}", f"{result.effective_rank:,}"),
            *decay_rows(result.spectral_entropy, result.spectral_decay, result.singular_values),
            ("divergence from a flat spectrum", f"{short(result.flat_divergence)} nats"),
        ]

    @classmethod
    def monitor(cls, batch: base.MonitoredBatch) -> base.Snapshot:
        values = batch.column_space.values
        entropy = spectra.spectral_entropy(values)
        scalars = {"spectral_entropy": entropy, "effective_rank": math.exp(entropy)}
        return {**scalars, "singular_values": values}
