"""Measure how much predictions differ: KL(P ‖ Q) = Σ_x P(x) (log P(x) − log Q(x))."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from highrank_plugins.analysis.predictions import check_log_probs, checked_blocks, chunks


class Estimate(NamedTuple):
    """Hold a mean over drawn pairs, and the standard error of that mean."""

    mean: float
    standard_error: float
    pairs: int

    @classmethod
    def of(cls, values: Tensor) -> Estimate:
        """Estimate the mean from the value of each pair [pairs]."""
        error = float(values.std() / math.sqrt(len(values)))
        return cls(float(values.mean()), error, len(values))


def drawn_pairs(n: int, m: int, pairs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw row numbers i < n and j < m [pairs], independently and with replacement."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(n, (pairs,), generator=generator)
    return first, torch.randint(m, (pairs,), generator=generator)


def mean_pairwise_kld(blocks: Iterable[Tensor]) -> float:
    """Return the mean of KL(P_i ‖ P_j) over all N² pairs of rows of blocks [n_i, M].

    Σ_ij KL(P_i ‖ P_j) / N² = mean_i Σ_x P_i log P_i − Σ_x (mean_i P_i(x)) (mean_j log P_j(x)):
    no pair is ever formed. Times N / (N − 1) it is the mean over pairs of different rows.
    """
    sums: PredictionSums | None = None
    for index, block in enumerate(checked_blocks(blocks, finite=False)):
        check_log_probs(block, f"block {index}")
        sums = PredictionSums.of_rows(block, sums)
    assert sums is not None
    return mean_kld_of_sums(sums, sums)


@dataclass(frozen=True)
class PredictionSums:
    """Hold the sums over n predictions that give the mean over all pairs; sums of parts add up.

    sums: of P and of log P [2, M]; negative_entropy: Σ_i Σ_x P_i log P_i.
    """

    rows: int
    sums: Tensor
    negative_entropy: float

    @classmethod
    def of_rows(cls, log_probs: Tensor, before: PredictionSums | None = None) -> PredictionSums:
        """Return the sums of rows [n, M], added to the sums of earlier rows."""
        total = before
        for part in chunks(log_probs):
            log_p = part.double()
            p = log_p.exp()
            sums = torch.stack([p.sum(0), log_p.sum(0)])
            own = cls(len(p), sums, float(torch.special.xlogy(p, p).sum()))
            total = own if total is None else total + own
        assert total is not None
        return total

    def __add__(self, other: PredictionSums) -> PredictionSums:
        return PredictionSums(
            self.rows + other.rows,
            self.sums + other.sums.to(self.sums.device),
            self.negative_entropy + other.negative_entropy,
        )


def mean_kld_of_sums(p: PredictionSums, q: PredictionSums) -> float:
    """Return the mean of KL(P_i ‖ Q_j) over all pairs, from the sums over P and over Q."""
    mean_p, mean_log = p.sums[:1] / p.rows, q.sums[1:] / q.rows
    return p.negative_entropy / p.rows - float(_expected_log(mean_p, mean_log))


def _expected_log(p: Tensor, log_q: Tensor) -> Tensor:
    """Return Σ_x p_i(x) log q_j(x) [n, m] with 0 · −∞ = 0, for rows [n, M] and [m, M]."""
    ruled_out = log_q == -math.inf
    if not ruled_out.any():
        return p @ log_q.t()
    expected = p @ log_q.masked_fill(ruled_out, 0).t()
    return expected.masked_fill_(p @ ruled_out.to(p.dtype).t() > 0, -math.inf)


def row_kld(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(P_i ‖ Q_i) [n] in nats, float64, of rows of log-probabilities [n, M]."""
    log_p, log_q = log_p.double(), log_q.double()
    p = log_p.exp()
    return torch.where(p > 0, p * (log_p - log_q), 0.0).sum(-1)
