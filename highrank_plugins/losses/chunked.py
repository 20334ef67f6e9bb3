"""Level `chunked`: one chunk of tokens at a time, for any head.

reduction "sum" computes gradients in the forward pass, while a chunk's logits exist, and only
scales them in the backward pass. reduction "none" computes each chunk again in the backward pass,
where the upstream gradient of every token is known.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .plan import LossOutput, LossPlan, chunk_ranges

# A power of two on the logits' gradients in float16. They exist before a trainer scales the loss,
# and 2e-8 would become 0. It is fairseq's first --fp16 loss scale: the same range as a stock model.
HALF_SCALE = 128.0


def chunked_nll(plan: LossPlan) -> LossOutput:
    """Loss in chunks; gradients once (see `DOUBLE_BACKWARD`)."""
    tensors = plan.head.tensors()
    chunks = _Chunks(plan, list(tensors), _autocast_state(plan.features))
    inputs = (plan.features, *tensors.values())
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        loss, nll, correct = chunks.values(*inputs)
    elif plan.reduction == "sum":
        loss, nll, correct = _SumLoss.apply(chunks, *inputs)
    else:
        loss, nll, correct = _TokenLoss.apply(chunks, *inputs)
    return LossOutput(loss, nll, correct if plan.accuracy else None)


DOUBLE_BACKWARD = (
    "the chunked loss is differentiable once; for gradients of gradients (create_graph=True) use "
    "impl='reference' (--head-loss reference)"
)


@dataclass
class _Chunks:
    """The batch cut into chunks, as computations on explicit tensors."""

    plan: LossPlan
    names: list[str]
    autocast: tuple[bool, torch.dtype]
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        enabled, dtype = self.autocast
        compute = dtype if enabled else self.plan.features.dtype
        known = self.plan.reduction == "none"  # the upstream gradient brings the trainer's scale
        self.scale = HALF_SCALE if compute == torch.float16 and not known else 1.0

    def ranges(self) -> list[tuple[int, int]]:
        plan = self.plan
        return list(chunk_ranges(plan.features, plan.head.floats_per_token(), plan.memory))

    def context(self) -> AbstractContextManager[None]:
        """The autocast state of the call. No cache: it would keep graphs across chunks."""
        enabled, dtype = self.autocast
        device = self.plan.features.device.type
        return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False)

    def loss(self, start: int, stop: int, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Loss [n], nll [n] and hits [n] (empty unless asked for) of one chunk."""
        plan, named = self.plan, dict(zip(self.names, tensors, strict=True))
        draws, target = plan.draws.rows(start, stop), plan.target[start:stop]
        with self.context():
            if plan.accuracy:
                log_probs = plan.head.chunk_log_probs(x, named, draws)
                nll = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)
                smooth_sum = -log_probs.sum(-1) if plan.smooth else None
                hits = plan.hits(log_probs, start, stop)
            else:
                nll, smooth_sum = plan.head.chunk_nll(x, target, named, draws, plan.smooth)
                hits = target.new_empty(0, dtype=torch.bool)
            loss = plan.combine(nll, smooth_sum, start, stop)
        return loss, plan.blank(nll.detach(), start, stop), hits

    def values(self, features: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Loss, nll and hits of the whole batch, without gradients."""
        with torch.no_grad():
            parts = [
                self.loss(start, stop, features[start:stop], *tensors)
                for start, stop in self.ranges()
            ]
        return self.join(parts)

    def join(self, parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Results of chunks as results of the batch."""
        joined = tuple(torch.cat(column) for column in zip(*parts, strict=True))
        return joined if self.plan.reduction == "none" else tuple(t.sum() for t in joined)

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | None
    ) -> tuple[list[tuple[Tensor, ...]], list[Tensor | None]]:
        """Results per chunk, and gradients of Σ_n upstream_n loss_n times `scale`.

        Half-precision gradients are summed over chunks in float32. Inputs that need no gradient
        get None.
        """
        leaves = [t.detach().requires_grad_(need) for t, need in zip(inputs, needed, strict=True)]
        features, tensors = inputs[0], leaves[1:]
        sums: list[Tensor | None] = [
            torch.zeros(t.shape, dtype=_sum_dtype(t), device=t.device) if need else None
            for t, need in zip(inputs, needed, strict=True)
        ]
        parts = []
        for start, stop in self.ranges():
            x = features[start:stop].detach().requires_grad_(needed[0])
            with torch.enable_grad():
                part = self.loss(start, stop, x, *tensors)
                weights = None if upstream is None else upstream[start:stop]
                total = (part[0] if weights is None else part[0] * weights).sum() * self.scale
            wanted = [t for t, need in zip([x, *tensors], needed, strict=True) if need]
            # the caller's autocast must not reach the backward pass
            with torch.autocast(x.device.type, enabled=False):
                grads = iter(torch.autograd.grad(total, wanted, allow_unused=True))
            for i, sum_ in enumerate(sums):
                if sum_ is None:
                    continue
                grad = next(grads)
                if grad is not None:
                    (sum_[start:stop] if i == 0 else sum_).add_(grad)
            parts.append(tuple(t.detach() for t in part))
        return parts, sums


class _SumLoss(torch.autograd.Function):
    """Σ loss, with its gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, chunks: _Chunks, *inputs: Tensor) -> tuple[Tensor, ...]:
        needed = list(ctx.needs_input_grad[1:])
        parts, sums = chunks.gradients(needed, inputs, None)
        if chunks.scale > 1 and not all(s is None or s.isfinite().all() for s in sums):
            chunks.scale = 1.0  # overflow that no loss scaler could ever undo
            parts, sums = chunks.gradients(needed, inputs, None)
        ctx.scale, ctx.dtypes = chunks.scale, [t.dtype for t in inputs]
        ctx.present = [s is not None for s in sums]
        ctx.save_for_backward(*(s for s in sums if s is not None))
        loss, nll, correct = chunks.join(parts)
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        saved = iter(ctx.saved_tensors)
        factor = upstream / ctx.scale
        grads = [
            (next(saved) * factor).to(dtype) if present else None
            for present, dtype in zip(ctx.present, ctx.dtypes, strict=True)
        ]
        return None, *grads


class _TokenLoss(torch.autograd.Function):
    """Loss per token; each chunk is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, chunks: _Chunks, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.chunks = chunks
        ctx.save_for_backward(*inputs)
        loss, nll, correct = chunks.values(*inputs)
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        inputs = ctx.saved_tensors
        _, sums = ctx.chunks.gradients(list(ctx.needs_input_grad[1:]), inputs, upstream)
        grads = [
            None if sum_ is None else (sum_ / ctx.chunks.scale).to(t.dtype)
            for sum_, t in zip(sums, inputs, strict=True)
        ]
        return None, *grads


def _refuse_double_backward() -> None:
    if torch.is_grad_enabled():  # only under create_graph=True
        raise RuntimeError(DOUBLE_BACKWARD)


def _sum_dtype(t: Tensor) -> torch.dtype:
    return torch.float32 if t.dtype in (torch.float16, torch.bfloat16) else t.dtype


def _autocast_state(features: Tensor) -> tuple[bool, torch.dtype]:
    device = features.device.type
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
