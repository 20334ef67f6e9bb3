"""Compute the loss of one chunk of tokens at a time through autograd, for any head."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.autograd import inner_graph, new_sums, once_differentiable_nll, reduced
from highrank_plugins.losses.chunked_head import Named
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.own_layers import call_bound, inputs_of
from highrank_plugins.losses.plan import ChunkResults, LossOutput, LossPlan, Scores
from highrank_plugins.losses.precision import Autocast, half_scale
from highrank_plugins.losses.reference import scores_of_log_probs, square_norms


def chunked_nll(plan: LossPlan) -> LossOutput:
    """Return the loss, computed in chunks; differentiable once (`autograd.DOUBLE_BACKWARD`)."""
    tensors = inputs_of(plan)
    return once_differentiable_nll(_Chunks(plan, list(tensors)), (plan.features, *tensors.values()))


class _Chunks:
    """Cut the batch into chunks; an `autograd.ChunkedLoss`."""

    def __init__(self, plan: LossPlan, names: list[str]) -> None:
        self.plan, self.names = plan, names
        self.autocast = Autocast(plan.features)
        self.scale = half_scale(plan, self.autocast.compute_dtype(plan.features))

    def ranges(self) -> list[tuple[int, int]]:
        plan = self.plan
        size = tokens_within(plan.features, plan.head.floats_per_token(), plan.memory)
        return list(chunk_ranges(0, plan.features.size(0), plan.most or size))

    def loss(self, start: int, stop: int, x: Tensor, *tensors: Tensor) -> LossOutput:
        """Return the output [n] of one chunk."""
        plan, named = self.plan, dict(zip(self.names, tensors, strict=True))
        random_state, target = plan.random_state.rows(start, stop), plan.target[start:stop]

        def scores(tensors: Named) -> Scores:
            if plan.accuracy or plan.entropy:
                return scores_of_log_probs(plan, x, target, tensors, random_state)
            nll, smooth_sum = plan.head.chunk_nll(x, target, tensors, random_state, plan.smooth)
            square_norm = square_norms(plan, x, tensors, random_state)
            return Scores(nll, smooth_sum, square_norm_N=square_norm)

        with self.autocast.context():
            return plan.output(call_bound(plan, named, scores), start, stop)

    def values(self, *inputs: Tensor) -> LossOutput:
        """Return what `ChunkedLoss.values` describes."""
        features, *tensors = inputs
        rows = ChunkResults(features.size(0))
        with torch.no_grad():
            for start, stop in self.ranges():
                rows.add(self.loss(start, stop, features[start:stop], *tensors))
        return reduced(self.plan, rows)

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | None
    ) -> tuple[LossOutput, list[Tensor | None]]:
        """Return what `ChunkedLoss.gradients` describes."""
        leaves = [t.detach().requires_grad_(need) for t, need in zip(inputs, needed, strict=True)]
        features, tensors = inputs[0], leaves[1:]
        sums = new_sums(needed, inputs)
        rows = ChunkResults(features.size(0))
        for start, stop in self.ranges():
            x = features[start:stop].detach().requires_grad_(needed[0])
            with inner_graph():
                part = self.loss(start, stop, x, *tensors)
                weights = None if upstream is None else upstream[start:stop]
                total = (part.loss if weights is None else part.loss * weights).sum() * self.scale
            wanted = [t for t, need in zip([x, *tensors], needed, strict=True) if need]
            # keeps the caller's autocast out of the backward pass
            with self.autocast.disabled():
                grads = iter(torch.autograd.grad(total, wanted, allow_unused=True))
            for i, sum_ in enumerate(sums):
                if sum_ is None:
                    continue
                grad = next(grads)
                if grad is not None:
                    (sum_[start:stop] if i == 0 else sum_).add_(grad)
            rows.add(part)
        return reduced(self.plan, rows), sums
