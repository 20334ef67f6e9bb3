"""Level `fused`: gradients written out, for heads that name a fused loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from highrank_plugins.losses.functions import (
    Autocast,
    half_scale,
    join,
    once_differentiable_nll,
    zero_sums,
)
from highrank_plugins.losses.fused.base import FusedLoss, Scores
from highrank_plugins.losses.plan import LossOutput, LossPlan, chunk_ranges, tokens_within

# Bytes of what is kept per token apart from chunks (contexts, gates, their gradients): the small
# products run over as many chunks at once as fit. On a CPU one by one is as fast.
INPUT_MEMORY = {"cpu": 0, "cuda": 2**28}


def fused_nll(plan: LossPlan) -> LossOutput:
    """Loss in chunks without autograd over them; gradients once (`functions.DOUBLE_BACKWARD`)."""
    return run_fused(plan, plan.head.fused)


def run_fused(plan: LossPlan, kind: type[FusedLoss]) -> LossOutput:
    """The same with `kind`: the head's own fused loss, or one that stands in for it."""
    tensors = plan.head.tensors()
    batch = _Batch(plan, list(tensors), kind)
    return once_differentiable_nll(batch, (plan.features, *tensors.values()))


class _Batch:
    """The batch in blocks of tokens, whose inputs autograd makes, and chunks; `functions.Batch`."""

    def __init__(self, plan: LossPlan, names: list[str], kind: type[FusedLoss]) -> None:
        self.plan, self.names, self.kind = plan, names, kind
        self.autocast = Autocast(plan.features)
        self.compute = self.autocast.compute_dtype(plan.features)
        self.scale = half_scale(plan, self.compute)

    def values(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `functions.Batch.values`."""
        with torch.no_grad():
            return self._run([False] * len(inputs), inputs, None)[0]

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor | None]]:
        """As `functions.Batch.gradients`."""
        return self._run(needed, inputs, self._token_scale(inputs[0], upstream))

    def _token_scale(self, features: Tensor, upstream: Tensor | None) -> Tensor:
        """What the gradient of each token's loss is multiplied by [N]; 0 where ignored."""
        wide = torch.float64 if self.compute == torch.float64 else torch.float32
        factor = features.new_full((features.size(0),), self.scale, dtype=wide)
        for other in (self.plan.weight, upstream):
            if other is not None:
                factor = factor * other.to(wide)
        return self.plan.blank(factor, 0, features.size(0))

    def _run(
        self, needed: list[bool], inputs: tuple[Tensor, ...], scale: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor | None]]:
        sums = zero_sums(needed, inputs)
        named = {n: t.detach() for n, t in zip(self.names, inputs[1:], strict=True)}
        own = {
            n: s
            for n, s in zip(self.names, sums[1:], strict=True)
            if s is not None and self.kind.reads_tensor(n)
        }
        # autocast would reach into products and passes that choose their dtypes themselves
        with torch.no_grad(), torch.autocast(self.autocast.device, enabled=False):
            loss = self.kind(self.plan, named, own, self.compute)
            parts = [
                part
                for start, stop in self._blocks(loss)
                for part in self._block(loss, start, stop, needed, inputs, sums, scale)
            ]
            if scale is not None:
                loss.finish()
        return join(self.plan, parts), sums

    def _chunk_size(self, loss: FusedLoss) -> int:
        floats = loss.floats_per_token(self.plan.head)
        logits = self.plan.features.size(0) * self.plan.head.num_classes
        return tokens_within(
            self.plan.features,
            floats,
            self.plan.memory,
            matrix=loss.weight.numel(),
            most=logits // max(1, floats),
        )

    def _blocks(self, loss: FusedLoss) -> list[tuple[int, int]]:
        size = self._chunk_size(loss)
        features = self.plan.features
        if self.plan.memory is None:
            budget = INPUT_MEMORY.get(features.device.type, INPUT_MEMORY["cuda"])
            inputs = self.plan.head.token_floats() * max(features.element_size(), 4)
            size *= max(1, budget // (size * max(1, inputs)))
        return list(chunk_ranges(0, features.size(0), size))

    def _block(
        self,
        loss: FusedLoss,
        start: int,
        stop: int,
        needed: list[bool],
        inputs: tuple[Tensor, ...],
        sums: list[Tensor | None],
        scale: Tensor | None,
    ) -> list[tuple[Tensor, ...]]:
        """One block: autograd as far as `token_inputs`, then chunks, then back through autograd."""
        plan = self.plan
        small = [
            i
            for i, need in enumerate(needed)
            if need and not (i and self.kind.reads_tensor(self.names[i - 1]))
        ]
        leaves = [t.detach().requires_grad_(i in small) for i, t in enumerate(inputs)]
        x = leaves[0] = inputs[0][start:stop].detach().requires_grad_(0 in small)
        with torch.set_grad_enabled(bool(small)), self.autocast.context():
            local = plan.head.token_inputs(
                x, dict(zip(self.names, leaves[1:], strict=True)), plan.draws.rows(start, stop)
            )
        given = {name: t.detach() for name, t in local.items()}
        grads: dict[str, Tensor] = {}
        parts = []
        for a, b in chunk_ranges(start, stop, self._chunk_size(loss)):
            rows = slice(a - start, b - start)
            scores, chunk_grads = loss.chunk(
                {name: t[rows] for name, t in given.items()},
                plan.target[a:b],
                None if scale is None else scale[a:b],
                plan.draws.rows(a, b),
            )
            for name, grad in chunk_grads.items():
                if (a, b) == (start, stop):
                    grads[name] = grad.to(given[name].dtype)
                    continue
                if name not in grads:
                    grads[name] = torch.empty_like(given[name])
                grads[name][rows].copy_(grad)
            parts.append(self._part(scores, a, b))
        outputs = [n for n in grads if local[n].requires_grad]
        # edges, so that autograd frees the contexts themselves once it needs them no more
        edges = [get_gradient_edge(local[n]) for n in outputs]
        del local, given
        if outputs:
            found = torch.autograd.grad(
                edges,
                [leaves[i] for i in small],
                [grads.pop(n) for n in outputs],
                allow_unused=True,
            )
            for i, grad in zip(small, found, strict=True):
                total = sums[i]
                if grad is not None and total is not None:
                    (total[start:stop] if i == 0 else total).add_(grad)
        return parts

    def _part(self, scores: Scores, start: int, stop: int) -> tuple[Tensor, ...]:
        """Loss [n], nll [n] and hits [n] (empty unless asked for) of one chunk."""
        plan = self.plan
        loss = plan.combine(scores.nll, scores.smooth_sum, start, stop)
        hits = plan.target.new_empty(0, dtype=torch.bool)
        if scores.hits is not None:
            hits = plan.blank(scores.hits, start, stop)
        return loss, plan.blank(scores.nll, start, stop), hits
