"""Run a fused loss over a batch, in blocks and chunks of tokens.

    features [N, F], tensors of the head
        │  for each block of tokens:
        │    token_inputs, through autograd: contexts, log π, gates ── what is small per token
        │        │  for each chunk of the block:
        │        │    FusedLoss.chunk
        │        │      products          logits = W h          torch
        │        │      one pass          logits → scores, and their gradient in place    Kernels
        │        │      two products      → gradients of h and, summed over chunks, of W  torch
        │        ▼
        │    backward through autograd: gradients of features and of the small tensors
        ▼
    loss, nll, correct, entropy; sums of the gradients

Reduction "sum" runs this once, in the forward pass; "none" once for the values and again in the
backward pass, with the upstream gradient of each token (see `autograd`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from highrank_plugins.losses.autograd import inner_graph, new_sums, once_differentiable_nll, reduced
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.fused.base import FusedLoss
from highrank_plugins.losses.fused.summed_linear import GradientSum, SummedLinear
from highrank_plugins.losses.kernels import triton
from highrank_plugins.losses.kernels.base import Kernels
from highrank_plugins.losses.kernels.torch import TorchKernels
from highrank_plugins.losses.own_layers import call_bound, inputs_of
from highrank_plugins.losses.plan import ChunkResults, LossOutput, LossPlan
from highrank_plugins.losses.precision import Autocast, half_scale

# Bytes of inputs of chunks (contexts, gates, their gradients): the small products run over as many
# chunks at once as fit. With a smaller limit for a chunk, that is the limit of its inputs, too. On
# a CPU one chunk at a time is as fast.
INPUT_MEMORY = {"cpu": 0, "cuda": 40 * 2**20}
# Each block adds gradients to the float32 sums of the matrices of its small products, which for a
# MoS with K = 15 are half as large as the vocabulary's. With this many chunks a block has two.
MANY_CHUNKS = 16


def fused_nll(plan: LossPlan, kernels: type[Kernels]) -> LossOutput:
    """Return the loss without autograd over chunks; it is differentiable once."""
    tensors = inputs_of(plan)
    runner = _Runner(plan, list(tensors), kernels)
    return once_differentiable_nll(runner, (plan.features, *tensors.values()))


class _Runner:
    """Run the batch in blocks, whose inputs autograd makes, and chunks of them."""

    def __init__(self, plan: LossPlan, names: list[str], kernels: type[Kernels]) -> None:
        self.plan, self.names, self.kernels = plan, names, kernels
        self.fused: type[FusedLoss] = plan.head.fused
        self.autocast = Autocast(plan.features)
        self.compute = self.autocast.compute_dtype(plan.features)
        self.scale = half_scale(plan, self.compute)

    def values(self, *inputs: Tensor) -> LossOutput:
        """Return what `ChunkedLoss.values` describes."""
        with torch.no_grad():
            return self._run([False] * len(inputs), inputs, None)[0]

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | None
    ) -> tuple[LossOutput, list[Tensor | None]]:
        """Return what `ChunkedLoss.gradients` describes."""
        return self._run(needed, inputs, self._token_scale(inputs[0], upstream))

    def _token_scale(self, features: Tensor, upstream: Tensor | None) -> Tensor:
        """Return the factor [N] of the gradient of each token's loss; 0 where ignored."""
        wide = torch.float64 if self.compute == torch.float64 else torch.float32
        factor = features.new_full((features.size(0),), self.scale, dtype=wide)
        for other in (self.plan.weight, upstream):
            if other is not None:
                factor = factor * other.to(wide)
        return self.plan.blank(factor, 0, features.size(0))

    def _run(self, *given: Any) -> tuple[LossOutput, list[Tensor | None]]:
        try:
            return self._run_kernels(*given)
        except triton.CannotCompile as error:
            if not self.plan.falls_back:
                raise
            triton.rule_out(self.plan.head, error)
        self.kernels = TorchKernels
        return self._run_kernels(*given)

    def _run_kernels(
        self, needed: list[bool], inputs: tuple[Tensor, ...], scale: Tensor | None
    ) -> tuple[LossOutput, list[Tensor | None]]:
        reads = self.fused.reads_tensor
        small = [
            i for i, need in enumerate(needed) if need and not (i and reads(self.names[i - 1]))
        ]
        overwritten = [i for i, n in enumerate(self.names, 1) if n in self.fused.overwrites]
        sums = new_sums(needed, inputs, [*small, *overwritten])
        given = {i: GradientSum(total) for i in small if (total := sums[i]) is not None}
        named = {n: t.detach() for n, t in zip(self.names, inputs[1:], strict=True)}
        own = {
            n: s
            for n, s in zip(self.names, sums[1:], strict=True)
            if s is not None and self.fused.reads_tensor(n)
        }
        # Triton's kernels start on the current device
        on_device = torch.cuda.device_of(self.plan.features)
        with torch.no_grad(), self.autocast.disabled(), on_device:
            kernels = self.kernels(self.plan, named, own, self.compute)
            loss = self.fused(self.plan, named, own, kernels)
            rows = ChunkResults(self.plan.features.size(0))
            for start, stop in self._blocks(loss):
                rows.extend(self._block(loss, start, stop, inputs, given, scale))
            if scale is not None:
                loss.finish()
                for i, gradients in given.items():
                    if i:  # each block finishes that of its features
                        gradients.finish()
        return reduced(self.plan, rows), sums

    def _chunk_size(self, loss: FusedLoss) -> int:
        floats = loss.floats_per_token(self.plan.head)
        logits = self.plan.features.size(0) * self.plan.head.num_classes
        return self.plan.most or tokens_within(
            self.plan.features,
            floats,
            self.plan.memory,
            matrix=(loss.weight.size(0), loss.weight.size(1)),
            most=logits // max(1, floats),
            width=loss.kernels.bytes_per_logit,
        )

    def _blocks(self, loss: FusedLoss) -> list[tuple[int, int]]:
        size = self._chunk_size(loss)
        x = self.plan.features
        budget = INPUT_MEMORY.get(x.device.type, INPUT_MEMORY["cuda"])
        inputs = self.plan.head.token_floats() * max(x.element_size(), 4)
        least = 2 if budget and x.size(0) > MANY_CHUNKS * size else 1
        if self.plan.memory is not None:
            budget, least = min(budget, self.plan.memory), 1
        size *= max(least, budget // (size * max(1, inputs)))
        return list(chunk_ranges(0, x.size(0), size))

    def _block(
        self,
        loss: FusedLoss,
        start: int,
        stop: int,
        inputs: tuple[Tensor, ...],
        sums: dict[int, GradientSum],
        scale: Tensor | None,
    ) -> list[LossOutput]:
        """Run autograd as far as `token_inputs`, then chunks, then go back through autograd."""
        plan = self.plan
        if 0 in sums:
            sums = {**sums, 0: GradientSum(sums[0].total[start:stop])}
        leaves = [t.detach().requires_grad_(i in sums) for i, t in enumerate(inputs)]
        x = leaves[0] = inputs[0][start:stop].detach().requires_grad_(0 in sums)
        tensors = dict(zip(self.names, leaves[1:], strict=True))
        summed = SummedLinear(
            ((leaves[i], total) for i, total in sums.items()),
            self.compute if self.autocast.enabled else None,
        )
        with inner_graph(bool(sums)), self.autocast.context(), summed:
            masks = plan.random_state.rows(start, stop)
            local = call_bound(plan, tensors, lambda own: plan.head.token_inputs(x, own, masks))
        given = {name: t.detach() for name, t in local.items()}
        written = {
            name: torch.empty(given[name].shape, dtype=self.compute, device=x.device)
            for name in (() if scale is None else loss.writes_local)
        }
        grads: dict[str, Tensor] = {}
        parts = []
        for a, b in chunk_ranges(start, stop, self._chunk_size(loss)):
            rows = slice(a - start, b - start)
            scores, chunk_grads = loss.chunk(
                {name: t[rows] for name, t in given.items()},
                plan.target[a:b],
                None if scale is None else scale[a:b],
                plan.random_state.rows(a, b),
                {name: grad[rows] for name, grad in written.items()},
            )
            for name, grad in chunk_grads.items():
                if (a, b) == (start, stop):
                    grads[name] = grad.to(given[name].dtype)
                    continue
                if name not in grads:
                    grads[name] = torch.empty_like(given[name])
                grads[name][rows].copy_(grad)
            parts.append(plan.output(scores, a, b))
        grads |= {name: grad.to(given[name].dtype) for name, grad in written.items()}
        outputs = [n for n in grads if local[n].requires_grad]
        # keep edges, so that autograd can free the contexts when it no longer needs them
        edges = [get_gradient_edge(local[n]) for n in outputs]
        del local, given, written
        if outputs:
            found = torch.autograd.grad(
                edges,
                [leaves[i] for i in sums],
                [grads.pop(n) for n in outputs],
                allow_unused=True,
            )
            for total, grad in zip(sums.values(), found, strict=True):
                if grad is not None:
                    total.add(grad)
        if 0 in sums:
            sums[0].finish()
        return parts
