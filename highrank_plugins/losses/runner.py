"""Run a loss over a batch, in blocks and chunks of tokens.

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
backward pass, with the upstream gradient of each token (see `autograd`). A head without fused loss
runs the same way: autograd then computes the scores of a chunk, see `AutogradLoss`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from highrank_plugins.losses.autograd import (
    FEATURES,
    GradientSum,
    SummedTensors,
    inner_graph,
    once_differentiable_nll,
)
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.kernels import triton
from highrank_plugins.losses.kernels.torch import Kernels
from highrank_plugins.losses.own_layers import call_bound, inputs_of
from highrank_plugins.losses.plan import ChunkResults, LossOutput, LossPlan, Named, Scores
from highrank_plugins.losses.reference import scores_of_log_probs, square_norms

# A power of two on the logits' gradients in float16. They exist before a trainer scales the loss,
# and 2e-8 would become 0. It is fairseq's initial --fp16 loss scale, and gives the range of a stock
# model.
HALF_SCALE = 128.0
# Bytes of inputs of chunks (contexts, gates, their gradients): the small products run over as many
# chunks at once as fit. With a smaller limit for a chunk, that is the limit of its inputs, too. On
# a CPU one chunk at a time is as fast.
INPUT_MEMORY = {"cpu": 0, "cuda": 40 * 2**20}
# Each block adds gradients to the float32 sums of the matrices of its small products, which for a
# MoS with K = 15 are half as large as the vocabulary's. With this many chunks a block has two.
MANY_CHUNKS = 16


def run(plan: LossPlan, kernels: type[Kernels] | None) -> LossOutput:
    """Return the loss, differentiable once; without kernels autograd computes each chunk."""
    tensors = inputs_of(plan)
    runner = Runner(plan, [FEATURES, *tensors], kernels)
    return once_differentiable_nll(runner, (plan.features, *tensors.values()))


def autocast_dtype(features: Tensor) -> torch.dtype | None:
    """Return the dtype of products under the caller's autocast; None without."""
    device = features.device.type
    # device meta, which counts a GPU's peak, has no autocast
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def autocast(features: Tensor, enabled: bool) -> AbstractContextManager[None]:
    """Turn autocast on or off, without a cache, which would keep graphs across chunks."""
    device = features.device.type
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    dtype = torch.get_autocast_dtype(device)
    return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)


class Runner:
    """Run the batch in blocks, whose inputs autograd makes, and chunks of them."""

    def __init__(self, plan: LossPlan, names: list[str], kernels: type[Kernels] | None) -> None:
        self.plan, self.names = plan, names
        self.kernels, self.fused = kernels or Kernels, plan.head.fused if kernels else AutogradLoss
        x = plan.features
        self.autocast = autocast_dtype(x) is not None
        # autocast does not touch float64
        self.compute = x.dtype if x.dtype == torch.float64 else autocast_dtype(x) or x.dtype
        # a backward pass brings its own scale
        is_half = self.compute == torch.float16 and plan.reduction == "sum"
        self.scale = HALF_SCALE if is_half else 1.0

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | float | None
    ) -> tuple[LossOutput, list[Tensor | None]]:
        """Return the values, and gradients of Σ_n upstream_n loss_n times `scale`.

        Half-precision gradients of tensors are sums over chunks in float32. Inputs that need no
        gradient get None. `upstream` is [N], or 1 for all tokens; None asks for values only.
        """
        try:
            return self._run(needed, inputs, upstream)
        except triton.CannotCompile as error:
            if not self.plan.falls_back:
                raise
            triton.rule_out(self.plan.head, error)
        self.kernels = Kernels
        return self._run(needed, inputs, upstream)

    def _run(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | float | None
    ) -> tuple[LossOutput, list[Tensor | None]]:
        plan, scale = self.plan, None
        if upstream is not None:  # factor [N] of the gradient of each token; 0 where ignored
            wide = torch.promote_types(self.compute, torch.float32)
            scale = torch.full_like(plan.target, self.scale, dtype=wide) * upstream
            if plan.weight is not None:
                scale = scale * plan.weight.to(wide)
            scale = plan.blank(scale.to(wide), 0, len(scale))
        every = zip(self.names, inputs, needed, strict=True)
        sums = {n: self._sum(n, t) for n, t, need in every if need}
        own = {n: s for n, s in sums.items() if self.fused.reads_tensor(n)}
        small = {n: GradientSum(s) for n, s in sums.items() if n not in own}
        given = dict(zip(self.names, (t.detach() for t in inputs), strict=True))
        on_device = torch.cuda.device_of(plan.features)  # where Triton's kernels start
        with torch.no_grad(), autocast(plan.features, enabled=False), on_device:
            loss = self.fused(plan, given, own, self.kernels, self.compute)
            blocks = self._blocks(loss)
            parts = (
                part for a, b in blocks for part in self._block(loss, a, b, given, small, scale)
            )
            output = LossOutput(*ChunkResults(plan.features.size(0), parts).columns)
            if scale is not None:
                loss.finish()
                for name, gradients in small.items():
                    if name != FEATURES:  # each block finishes that of its features
                        gradients.finish()
        return output if plan.reduction == "none" else output.map(torch.sum), [
            sums.get(n) for n in self.names
        ]

    def _sum(self, name: str, given: Tensor) -> Tensor:
        """Return memory for the gradient of an input; zeros if chunks add to it.

        It is at least float32, except that of features, of which no token's is a sum over chunks.
        """
        adds = self.fused.reads_tensor(name) and name not in self.fused.overwrites
        wide = torch.promote_types(given.dtype, torch.float32)
        dtype = given.dtype if name == FEATURES else wide
        return (torch.zeros if adds else torch.empty)(given.shape, dtype=dtype, device=given.device)

    def _blocks(self, loss: FusedLoss) -> list[tuple[int, int]]:
        size = loss.chunk_tokens()
        x = self.plan.features
        budget = INPUT_MEMORY.get(x.device.type, INPUT_MEMORY["cuda"]) * loss.joins_chunks
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
        inputs: Named,
        sums: dict[str, GradientSum],
        scale: Tensor | None,
    ) -> list[LossOutput]:
        """Run autograd as far as `token_inputs`, then chunks, then go back through autograd."""
        plan = self.plan
        if FEATURES in sums:
            sums = {**sums, FEATURES: GradientSum(sums[FEATURES].total[start:stop])}
        leaves = {n: t.detach().requires_grad_(n in sums) for n, t in inputs.items()}
        x = inputs[FEATURES][start:stop].detach().requires_grad_(FEATURES in sums)
        leaves[FEATURES] = x
        tensors = {n: t for n, t in leaves.items() if n != FEATURES}
        if sums and loss.joins_chunks:
            tensors = SummedTensors(tensors, x, sums, self.compute)
        with inner_graph(bool(sums)), autocast(x, self.autocast):
            random_state, target = plan.random_state.rows(start, stop), plan.target[start:stop]
            local = call_bound(
                plan, tensors, lambda own: loss.token_inputs(x, target, own, random_state)
            )
        given = {name: t.detach() for name, t in local.items()}
        grads = {} if scale is None else {n: torch.empty_like(t) for n, t in given.items()}
        parts = []
        for a, b in chunk_ranges(start, stop, loss.chunk_tokens()):
            rows = slice(a - start, b - start)
            scores = loss.chunk(
                {name: t[rows] for name, t in given.items()},
                plan.target[a:b],
                None if scale is None else scale[a:b],
                plan.random_state.rows(a, b),
                {name: grad[rows] for name, grad in grads.items()},
            )
            parts.append(plan.output(scores, a, b))
        outputs = [n for n in grads if local[n].requires_grad]
        # keep edges, so that autograd can free the contexts when it no longer needs them
        edges = [get_gradient_edge(local[n]) for n in outputs]
        del local, given
        if outputs:
            upstream = [grads.pop(n) for n in outputs]
            found = torch.autograd.grad(
                edges, [leaves[n] for n in sums], upstream, allow_unused=True
            )
            for total, grad in zip(sums.values(), found, strict=True):
                if grad is not None:
                    total.add(grad)
        if FEATURES in sums:
            sums[FEATURES].finish()
        return parts


class AutogradLoss(FusedLoss):
    """Compute the scores of a chunk by autograd, for any head; `token_inputs` are the scores."""

    joins_chunks = False

    @classmethod
    def reads_tensor(cls, name: str) -> bool:
        return False

    def __init__(self, plan: LossPlan, *_: Any) -> None:
        self.plan = plan
        self.weights = (plan.target_weight, plan.smoothing_weight, 1.0, 1.0, plan.z_loss)

    def chunk_tokens(self) -> int:
        plan = self.plan
        return plan.most or tokens_within(plan.features, plan.head.floats_per_token(), plan.memory)

    def token_inputs(
        self, features: Tensor, target: Tensor, tensors: dict[str, Tensor], random_state: Any
    ) -> dict[str, Tensor]:
        plan = self.plan
        if plan.accuracy or plan.entropy:
            scores = scores_of_log_probs(plan, features, target, tensors, random_state)
        else:
            nll, smooth = plan.head.chunk_nll(features, target, tensors, random_state, plan.smooth)
            square_norm = square_norms(plan, features, tensors, random_state)
            scores = Scores(nll, smooth, square_norm_N=square_norm)
        return {name: s for name, s in scores._asdict().items() if s is not None}

    def chunk(
        self,
        local: dict[str, Tensor],
        target_N: Tensor,
        scale_N: Tensor | None,
        random_state: Any,
        out: dict[str, Tensor],
    ) -> Scores:
        scores = Scores(**local)
        for name, weight in zip(Scores._fields, self.weights, strict=True):
            if scale_N is not None and name in out and out[name].is_floating_point():
                torch.mul(scale_N, weight, out=out[name])
        return scores

    def finish(self) -> None:
        pass
