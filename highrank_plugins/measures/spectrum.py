"""Measure the spectrum of the matrix of log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from highrank_plugins.analysis import spectrum as spectra
from highrank_plugins.analysis.predictions import refuse_rows
from highrank_plugins.common.formatting import Figure, Lines, short
from highrank_plugins.common.names import Score
from highrank_plugins.measures import base

POINTS = 400  # points of a curve
EPSILONS = (1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class LogProbSpectrum:
    """Hold ranks of the matrix [contexts, words] of log-probabilities.

    `press_rank` is for `dtype`, in which the model and the decomposition have computed;
    `effective_rank` by ε. Below `smallest_reliable` singular values are noise. `spectral_decay` is
    fitted to those that the Press rank counts.
    """

    contexts: int
    words: int
    dtype: str
    method: str
    smallest_reliable: float
    press_rank: int
    effective_rank: dict[str, int]
    spectral_entropy: float
    spectral_decay: float | None
    singular_values: list[float]


@base.register_measure("spectrum")
class SpectrumMeasure(base.TextMeasure):
    """Compute the rank of the log-probabilities.

    They are a matrix, contexts × words. With --dtype float64 the model itself computes in float64,
    since rounding in float32 would raise the rank. The papers use float32.
    """

    title = "Spectrum of the log-probabilities"
    about = (
        "The matrix of log P(word | context) has rank d + 1 at most for a softmax of d features, "
        "d + 2 with a bias (Yang et al. 2018). The Press rank counts singular values above the "
        "tolerance of the precision; the ε-rank is the least k whose k largest hold 1 − ε of the "
        "sum of squares. More contexts can only raise a rank that is not full."
    )
    hidden = ("singular_values",)

    def start(self, words: base.Words, dtype: torch.dtype = torch.float32) -> None:
        super().start(words, dtype)
        self._dtype = dtype
        self._rows = spectra.SpectrumRows(dtype, "auto")

    def observe(self, block: base.Block) -> None:
        log_probs = block.log_probs
        refuse_rows(log_probs.isfinite(), f"token {block.first}", log_probs)
        self._rows.add(log_probs)

    def part(self) -> spectra.SpectrumPart:
        return self._rows.part()

    def merge(self, parts: Sequence[spectra.SpectrumPart]) -> LogProbSpectrum:
        found = spectra.whole_spectrum(parts)
        rank = found.press_rank()
        return LogProbSpectrum(
            contexts=found.shape[0],
            words=found.shape[1],
            dtype=str(self._dtype).removeprefix("torch."),
            method=found.method,
            smallest_reliable=found.smallest_reliable,
            press_rank=rank,
            effective_rank={
                f"{eps:g}": spectra.effective_rank(found.values, eps) for eps in EPSILONS
            },
            spectral_entropy=spectra.spectral_entropy(found.values),
            spectral_decay=spectra.spectral_decay(found.values, last=rank) if rank > 1 else None,
            singular_values=found.values.tolist(),
        )

    @classmethod
    def scores(cls, found: base.Found, split: str) -> dict[str, Score]:
        matrix = f"contexts:{found['contexts']}|words:{found['words']}|dtype:{found['dtype']}"
        method = found["method"]
        return {
            f"{split}_rank": Score(found["press_rank"], f"press|{matrix}|method:{method}"),
            **{
                f"{split}_effective_rank_{eps}": Score(rank, f"eps:{eps}|{matrix}|method:{method}")
                for eps, rank in found["effective_rank"].items()
            },
        }

    def figures(self, result: LogProbSpectrum) -> list[Figure]:
        title = f"Log-probabilities: Press rank {result.press_rank:,} in {result.dtype}"
        shape = result.contexts, result.words
        return [spectrum_figure(result.singular_values, shape, result.dtype, title)]

    def rows(self, result: LogProbSpectrum) -> base.Rows:
        head = self.words.head
        most = min(head.num_classes, head.embed_dim + 1 + (head.bias is not None))
        return [
            ("matrix", f"{result.contexts:,} contexts × {result.words:,} words"),
            (f"Press rank, {result.dtype}", f"{result.press_rank:,}"),
            ("at most, for a softmax of this width", f"{most:,}"),
            *((f"ε-rank, {eps}", f"{rank:,}") for eps, rank in result.effective_rank.items()),
            *decay_rows(result.spectral_entropy, result.spectral_decay, result.singular_values),
            ("noise below", short(result.smallest_reliable)),
        ]


def decay_rows(entropy: float, decay: float | None, values: Sequence[float]) -> base.Rows:
    """Return the lines of a card's table about the decay of singular values."""
    power = "–" if decay is None else f"σᵢ² ∝ i^(−{short(decay)})"
    return [
        ("σ₁ … last", f"{short(values[0])} … {short(values[-1])}"),
        ("entropy rank", f"exp(H) = {short(math.exp(entropy))}"),
        ("decay", power),
    ]


def spectrum_figure(
    values: Sequence[float], shape: tuple[int, int], dtype: str, title: str
) -> Lines:
    """Return singular values over the largest on two log axes, with a near Press tolerance."""
    largest = values[0]
    count = len(values)
    places = list(range(1, count + 1))
    if count > POINTS:  # as many as are distinct on a log axis
        places = sorted({round(count ** (i / (POINTS - 1))) for i in range(POINTS)})
    level = spectra.press_tolerance(largest, shape, getattr(torch, dtype)) / largest
    series: dict[str, Any] = {
        "singular values": (places, [values[i - 1] / largest for i in places])
    }
    if level * 100 > values[-1] / largest:  # far below, it would flatten the curve
        series["Press tolerance"] = ((1, len(values)), (level, level))
    axes = "index i of the singular value", "σᵢ / σ₁"
    return Lines(series, title, axes, "loglog", dashed=("Press tolerance",))
