"""Make the passes of a loss where each process has the logits of its own classes only.

A pass exchanges the largest value and the sum of each softmax, and the target's value: [n, K] each,
in two reductions. All processes take the same tokens at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import cache_sized_blocks
from highrank_plugins.losses.kernels.torch import Kernels, RecomputeLogits, log_domain_pass
from highrank_plugins.losses.plan import MixtureBlock, Scores, places


class SplitKernels(Kernels):
    """Make the passes with torch's operations; `plan.split` is a `VocabularyParallel`.

    With the largest value t_p and the sum s_p = Σ_x e^(v_x − t_p) of process p and T = max_p t_p,
    the log-sum-exp of all is T + log Σ_p s_p e^(t_p − T), and the share of p in the probabilities
    s_p e^(t_p − T) over that sum. Only logarithms of shares are safe: e^−104 is 0 in float32.
    """

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        """Yield the same ranges in all processes, of half the usual memory."""
        return cache_sized_blocks(rows, 2 * self.plan.split.floats, self.plan.features.device)

    def normalise(
        self, values: Tensor, target_N: Tensor, mean: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Turn values into the probabilities of all processes' softmax, see `Kernels`."""
        index, is_own = self._own(target_N, values)
        own = [values.gather(-1, index).squeeze(-1).where(is_own, 0)]
        own += [values.sum(-1)] if mean else []
        tops = values.amax(-1)
        values.clamp_min_(torch.finfo(values.dtype).min)  # a bias may rule out all that are here
        *_, log_sum = super().normalise(values, torch.zeros_like(target_N))
        log_share, top, log_sum, (at_target, *sums) = self._exchange(tops, log_sum, own)
        values.mul_(log_share.exp().unsqueeze(-1))
        return at_target, sums[0] / self.plan.num_classes if mean else None, top, log_sum

    def log_softmax(self, values: Tensor) -> Tensor:
        """Return the log-probabilities of the classes that are here."""
        tops = values.amax(-1)
        here = values.masked_fill((tops == -torch.inf).unsqueeze(-1), 0)
        log_probs = here.log_softmax(-1)
        log_share, *_ = self._exchange(tops, -log_probs.amax(-1), [])
        return log_probs.add_(log_share.unsqueeze(-1))

    def _exchange(
        self, top: Tensor, log_sum: Tensor, own: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Return log of this process's share, two summands of the log-sum-exp, sums of `own`."""
        split = self.plan.split
        largest = split.sum(top.clone(), largest=True)
        # −∞ where all classes of this process are ruled out
        log_part = (top - largest).add_(log_sum)
        norm, *sums = split.sum(torch.stack([log_part.exp(), *own]))
        log_norm = norm.log()
        return log_part - log_norm, largest, log_norm, sums

    def _own(self, target_N: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the index [n, ..., 1] of targets that are here, else 0, and which [n, ...] are."""
        split = self.plan.split
        is_own_N = (target_N >= split.first) & (target_N < split.stop)
        index = places((target_N - split.first).where(is_own_N, 0), values)
        return index, places(is_own_N, values).squeeze(-1)

    def add_at_target(self, values: Tensor, target_N: Tensor, summand: float) -> None:
        """Add to the values of the targets that are here."""
        index, is_own = self._own(target_N, values)
        values.scatter_add_(-1, index, summand * is_own.unsqueeze(-1).to(values.dtype))

    def over_classes(self, sums: Tensor) -> Tensor:
        found: Tensor = self.plan.split.sum(sums.clone())
        return found

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        """Return the scores, and write gradients; the first process has that of log π."""
        if self.plan.smooth:
            scores = log_domain_pass(self, block)
        else:
            scores = super().mixture_pass(block, bias_M, recompute_logits)
        if self.plan.split.rank:
            block.grad_prior_NK.zero_()
        return scores

    def weighed(self, log_probs: Tensor, target_N: Tensor, wanted: bool) -> tuple[Scores, Any]:
        """Return the scores of log P [n, M], and the weights of the classes that are here."""
        index_N1, is_own_N = self._own(target_N, log_probs)
        found_N = -log_probs.gather(-1, index_N1).squeeze(-1).where(is_own_N, 0)
        nll_N, smooth_sum_N = self.over_classes(torch.stack([found_N, -log_probs.sum(-1)]))
        weight_NM = torch.full_like(log_probs, self.plan.smoothing_weight)
        self.add_at_target(weight_NM, target_N, self.plan.target_weight)
        return Scores(nll_N, smooth_sum_N), weight_NM
