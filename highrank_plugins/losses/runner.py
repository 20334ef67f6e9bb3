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

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from highrank_plugins.common.torch_state import autocast, autocast_dtype, inner_graph
from highrank_plugins.losses import trust
from highrank_plugins.losses.autograd import (
    FEATURES,
    GradientSum,
    SumLoss,
    SummedTensors,
    TokenLoss,
)
from highrank_plugins.losses.chunking import chunk_ranges, join_chunks, tokens_within
from highrank_plugins.losses.fused import FusedLoss, LossChunk
from highrank_plugins.losses.kernels.compiled import CompiledKernels, Untrusted
from highrank_plugins.losses.kernels.torch import Kernels
from highrank_plugins.losses.plan import LossOutput, LossPlan, Named, Scores
from highrank_plugins.losses.weighted import TargetKernels
from highrank_plugins.own_layers.ours import bound, inputs_of

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
    named = {FEATURES: plan.features, **inputs_of(plan.head, plan.own)}
    if plan.split is not None:
        named |= plan.split.shared(named)
    runner, inputs = Runner(plan, [*named], kernels), (*named.values(),)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        with torch.no_grad():
            return runner.gradients([False] * len(inputs), inputs, None)[0]
    function = SumLoss if plan.reduction == "sum" else TokenLoss
    return LossOutput(*function.apply(runner, *inputs))


class Runner:
    """Run the batch in blocks, whose inputs autograd makes, and chunks of them."""

    def __init__(self, plan: LossPlan, names: list[str], kernels: type[Kernels] | None) -> None:
        self.plan, self.names = plan, names
        self.fused = plan.head.fused if kernels else AutogradLoss
        self.plain = Kernels if plan.soft is None else TargetKernels
        takes_targets = kernels is not None and issubclass(kernels, CompiledKernels)
        self.kernels = kernels if kernels and (takes_targets or not plan.soft) else self.plain
        x = plan.features
        self.autocast = autocast_dtype(x)  # a backward pass may run outside of it
        # autocast does not touch float64
        self.compute = x.dtype if x.dtype == torch.float64 else self.autocast or x.dtype
        # a backward pass brings its own scale
        is_half = self.compute == torch.float16 and plan.reduction == "sum" and not plan.split
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
        except Untrusted as error:
            if not self.plan.falls_back:
                raise
            trust.warn(str(error))
        self.kernels = self.plain
        return self._run(needed, inputs, upstream)

    def _run(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | float | None
    ) -> tuple[LossOutput, list[Tensor | None]]:
        plan, tokens, scale_N = self.plan, self.plan.features.size(0), None
        named = dict(zip(self.names, (t.detach() for t in inputs), strict=True))
        if upstream is not None:  # factor of the gradient of each token; 0 where ignored
            wide = torch.promote_types(self.compute, torch.float32)
            scale_N = plan.features.new_full((tokens,), self.scale, dtype=wide) * upstream
            if plan.weight is not None:
                scale_N = scale_N * plan.weight.to(wide)
            scale_N = plan.blank(scale_N.to(wide), 0, tokens)
        sums = {}  # at least float32, but for features, of which no token's is a sum over chunks
        for name, t in (pair for pair, need in zip(named.items(), needed, strict=True) if need):
            wide = torch.promote_types(t.dtype, torch.float32)
            adds = name == "bias" or name.startswith("pointwise.")  # see `FusedLoss`
            dtype = t.dtype if name == FEATURES else wide
            make = torch.zeros if adds else torch.empty
            sums[name] = make(t.shape, dtype=dtype, device=t.device)
        read = {n: s for n, s in sums.items() if n.partition(".")[0] in self.fused.reads}
        small = {n: GradientSum(s) for n, s in sums.items() if n not in read}
        on_device = torch.cuda.device_of(plan.features)  # where Triton's kernels start
        with torch.no_grad(), autocast(plan.features), on_device:
            loss = self.fused(plan, named, read, self.kernels, self.compute)
            blocks = self._blocks(loss)
            parts = (p for a, b in blocks for p in self._block(loss, a, b, named, small, scale_N))
            if issubclass(self.kernels, CompiledKernels):
                trust.check(loss, scale_N is not None)
            output = LossOutput(*join_chunks(tokens, parts))
            if scale_N is not None:
                loss.finish()
                for name, gradients in small.items():
                    if name != FEATURES:  # each block finishes that of its features
                        gradients.finish()
        output = output if plan.reduction == "none" else output.map(torch.sum)
        return output, [sums.get(n) for n in self.names]

    def _blocks(self, loss: FusedLoss) -> list[tuple[int, int]]:
        size, x = loss.chunk_tokens(), self.plan.features
        budget = INPUT_MEMORY.get(x.device.type, INPUT_MEMORY["cuda"]) * loss.joins_chunks
        inputs = self.plan.head.token_floats() * max(x.element_size(), 4)
        least = 2 if budget and x.size(0) > MANY_CHUNKS * size else 1
        if self.plan.memory is not None:
            budget, least = min(budget, self.plan.memory), 1
        size *= max(least, budget // (size * max(1, inputs)))
        return list(chunk_ranges(0, x.size(0), size))

    def _block(
        self, loss: FusedLoss, start: int, stop: int, inputs: Named,
        sums: dict[str, GradientSum], scale_N: Tensor | None,
    ) -> list[LossOutput]:  # fmt: skip
        """Run autograd as far as `token_inputs`, then chunks, then go back through autograd."""
        plan = self.plan
        if FEATURES in sums:
            sums = {**sums, FEATURES: GradientSum(sums[FEATURES].total[start:stop])}
        leaves = {**inputs, FEATURES: inputs[FEATURES][start:stop]}
        leaves.update({n: leaves[n].detach().requires_grad_() for n in sums})
        x, target_N = leaves[FEATURES], plan.target[start:stop]
        tensors = {n: t for n, t in leaves.items() if n != FEATURES}
        if sums and loss.joins_chunks:
            tensors = SummedTensors(tensors, x, sums, self.compute)
        graph = inner_graph() if sums else nullcontext()
        with graph, autocast(x, self.autocast):
            state = plan.random_state.rows(start, stop)
            inputs_of = partial(loss.token_inputs, x, target_N, random_state=state)
            local = bound(plan.head, tensors, inputs_of) if plan.own else inputs_of(tensors)
        given = {name: t.detach() for name, t in local.items()}
        grads = {} if scale_N is None else {n: torch.empty_like(t) for n, t in given.items()}
        scales = None if scale_N is None else scale_N[start:stop]
        block = LossChunk(given, target_N, scales, grads, start)
        size = loss.chunk_tokens() if loss.joins_chunks else stop - start
        parts = [
            plan.output(loss.chunk(block.rows(a, b)), start + a, start + b)
            for a, b in chunk_ranges(0, stop - start, size)
        ]
        outputs = [n for n in grads if local[n].requires_grad]
        # keep edges, so that autograd can free the contexts when it no longer needs them
        edges = [get_gradient_edge(local[n]) for n in outputs]
        del local, given, block
        if outputs:
            upstream, wanted = [grads.pop(n) for n in outputs], [leaves[n] for n in sums]
            found = torch.autograd.grad(edges, wanted, upstream, allow_unused=True)
            for total, grad in zip(sums.values(), found, strict=True):
                if grad is not None:
                    total.add(grad)
        if FEATURES in sums:
            sums[FEATURES].finish()
        return parts


# -- by autograd, for any head ------------------------------------------------------------------


def reference_nll(plan: LossPlan) -> LossOutput:
    """Return the loss, gathered from all log-probabilities; differentiable any number of times."""
    tokens = plan.features.size(0)
    random_state = plan.random_state.rows(0, tokens)
    scores = scores_of_log_probs(
        plan, plan.features, plan.target, plan.head.tensors(), random_state
    )
    out = plan.output(scores, 0, tokens)
    return out if plan.reduction == "none" else out.map(torch.sum)


def scores_of_log_probs(
    plan: LossPlan, features: Tensor, target: Tensor, tensors: Named, random_state: Any
) -> Scores:
    """Return the scores of a run of tokens from all their log-probabilities."""
    log_probs = plan.head.chunk_log_probs(features, tensors, random_state)
    if plan.soft is not None:
        scores, _ = plan.soft.scores(plan, log_probs, target)
    else:
        scores = plan.scores_of(log_probs, target)
    return scores._replace(square_norm_N=square_norms(plan, features, tensors, random_state))


def square_norms(
    plan: LossPlan, features: Tensor, tensors: Named, random_state: Any
) -> Tensor | None:
    """Return Σ_k lse_k² [n] of a run of tokens; None without z-loss."""
    if not plan.z_loss:
        return None
    return plan.head.chunk_log_norms(features, tensors, random_state).square().sum(-1)


class AutogradLoss(FusedLoss):
    """Compute the scores of a chunk by autograd, for any head; `token_inputs` are the scores."""

    reads = ()
    joins_chunks = False

    def __init__(self, plan: LossPlan, *_: Any) -> None:
        self.plan = plan
        self.weights = {"nll_N": plan.target_weight, "smooth_sum_N": plan.smoothing_weight,
                        "square_norm_N": plan.z_loss}  # fmt: skip

    def chunk_tokens(self) -> int:
        plan = self.plan
        return plan.most or tokens_within(plan.features, plan.head.floats_per_token(), plan.memory)

    def token_inputs(
        self, features: Tensor, target: Tensor, tensors: Named, random_state: Any
    ) -> Named:
        plan = self.plan
        if plan.accuracy or plan.entropy or plan.soft is not None:
            scores = scores_of_log_probs(plan, features, target, tensors, random_state)
        else:
            nll, smooth = plan.head.chunk_nll(features, target, tensors, random_state, plan.smooth)
            square_norm = square_norms(plan, features, tensors, random_state)
            scores = Scores(nll, smooth, square_norm_N=square_norm)
        return {name: s for name, s in scores._asdict().items() if s is not None}

    def chunk(self, chunk: LossChunk) -> Scores:
        given, scale_N = chunk.given, chunk.scale_N
        if scale_N is not None:
            for name in chunk.grads:
                weight = self.weights.get(name, 1.0)
                scaled_N = scale_N if weight == 1 else scale_N * weight
                chunk.grads[name] = scaled_N.to(given[name].dtype)
        return Scores(**given)

    def finish(self) -> None:
        pass
