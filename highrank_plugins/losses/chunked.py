"""Compute the loss of one chunk of tokens at a time through autograd, for any head."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.losses.autograd import inner_graph, join, once_differentiable_nll, zero_sums
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.plan import LossOutput, LossPlan
from highrank_plugins.losses.precision import Autocast, half_scale


def chunked_nll(plan: LossPlan) -> LossOutput:
    """Return the loss, computed in chunks; differentiable once (`autograd.DOUBLE_BACKWARD`)."""
    tensors = plan.head.tensors()
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
        return list(chunk_ranges(0, plan.features.size(0), size))

    def loss(self, start: int, stop: int, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return loss [n], nll [n] and correct [n] (empty unless asked for) of one chunk."""
        plan, named = self.plan, dict(zip(self.names, tensors, strict=True))
        random_state, target = plan.random_state.rows(start, stop), plan.target[start:stop]
        with self.autocast.context():
            if plan.accuracy:
                log_probs = plan.head.chunk_log_probs(x, named, random_state)
                nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
                smooth_sum = -log_probs.sum(-1) if plan.smooth else None
                correct = plan.correct(log_probs, start, stop)
            else:
                nll, smooth_sum = plan.head.chunk_nll(x, target, named, random_state, plan.smooth)
                correct = target.new_empty(0, dtype=torch.bool)
            loss = plan.combine(nll, smooth_sum, start, stop)
        return loss, plan.blank(nll.detach(), start, stop), correct

    def values(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `ChunkedLoss.values` describes."""
        features, *tensors = inputs
        with torch.no_grad():
            parts = [
                self.loss(start, stop, features[start:stop], *tensors)
                for start, stop in self.ranges()
            ]
        return join(self.plan, parts)

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor | None]]:
        """Return what `ChunkedLoss.gradients` describes."""
        leaves = [t.detach().requires_grad_(need) for t, need in zip(inputs, needed, strict=True)]
        features, tensors = inputs[0], leaves[1:]
        sums = zero_sums(needed, inputs)
        parts = []
        for start, stop in self.ranges():
            x = features[start:stop].detach().requires_grad_(needed[0])
            with inner_graph():
                part = self.loss(start, stop, x, *tensors)
                weights = None if upstream is None else upstream[start:stop]
                total = (part[0] if weights is None else part[0] * weights).sum() * self.scale
            wanted = [t for t, need in zip([x, *tensors], needed, strict=True) if need]
            # the caller's autocast must not reach the backward pass
            with self.autocast.disabled():
                grads = iter(torch.autograd.grad(total, wanted, allow_unused=True))
            for i, sum_ in enumerate(sums):
                if sum_ is None:
                    continue
                grad = next(grads)
                if grad is not None:
                    (sum_[start:stop] if i == 0 else sum_).add_(grad)
            parts.append(tuple(t.detach() for t in part))
        return join(self.plan, parts), sums
