"""Autograd functions of losses that compute their own gradients, one chunk at a time.

Reduction "sum" computes gradients in the forward pass, while a chunk's logits exist, and only
scales them in the backward pass. Reduction "none" computes each chunk again in the backward pass,
where the upstream gradient of every token is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

from highrank_plugins.losses.plan import LossOutput, LossPlan

# A power of two on the logits' gradients in float16. They exist before a trainer scales the loss,
# and 2e-8 would become 0. It is fairseq's first --fp16 loss scale: the same range as a stock model.
HALF_SCALE = 128.0

DOUBLE_BACKWARD = (
    "this loss is differentiable once; for gradients of gradients (create_graph=True) use "
    "impl='reference' (--head-loss reference)"
)


class ChunkedLoss(Protocol):
    """The loss of a `LossPlan`, as computations on explicit inputs: features, then tensors."""

    plan: LossPlan
    scale: float

    def values(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss, nll and correct as the plan's reduction wants them, without gradients."""

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor | None]]:
        """Return the values, and gradients of Σ_n upstream_n loss_n times `scale`.

        Half-precision gradients are sums over chunks in float32. Inputs that need no gradient get
        None.
        """


def once_differentiable_nll(chunked: ChunkedLoss, inputs: tuple[Tensor, ...]) -> LossOutput:
    """Return the loss of a batch, with gradients for those inputs that need them."""
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        loss, nll, correct = chunked.values(*inputs)
    elif chunked.plan.reduction == "sum":
        loss, nll, correct = _SumLoss.apply(chunked, *inputs)
    else:
        loss, nll, correct = _TokenLoss.apply(chunked, *inputs)
    return LossOutput(loss, nll, correct if chunked.plan.accuracy else None)


class Autocast:
    """The autocast state of the call, which is set again around each chunk."""

    def __init__(self, features: Tensor) -> None:
        self.device = features.device.type
        # tensors without memory, by which a GPU's peak is counted, have none
        self.exists = torch.amp.is_autocast_available(self.device)
        self.enabled = self.exists and torch.is_autocast_enabled(self.device)
        self.dtype = torch.get_autocast_dtype(self.device) if self.exists else features.dtype

    def compute_dtype(self, features: Tensor) -> torch.dtype:
        """Return the dtype of matrix products."""
        # autocast leaves float64 alone
        return self.dtype if self.enabled and features.dtype != torch.float64 else features.dtype

    def context(self) -> AbstractContextManager[None]:
        """Set the state again, without a cache, which would keep graphs across chunks."""
        return self._state(self.enabled)

    def disabled(self) -> AbstractContextManager[None]:
        """Turn autocast off: what computes in here chooses its dtypes itself."""
        return self._state(False)

    def _state(self, enabled: bool) -> AbstractContextManager[None]:
        if not self.exists:
            return nullcontext()
        return torch.autocast(self.device, dtype=self.dtype, enabled=enabled, cache_enabled=False)


@contextmanager
def inner_graph(recorded: bool = True) -> Iterator[None]:
    """Record a graph that ends within the loss; its tensors are saved where they are.

    The caller's hooks for saved tensors are kept out: those of `torch.utils.checkpoint` would run
    the whole loss again for each block, those of `save_on_cpu` would copy contexts to the host.
    """
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with torch.set_grad_enabled(recorded), hooks:
        yield


def half_scale(plan: LossPlan, compute: torch.dtype) -> float:
    """Return the factor of the gradients of logits; a backward pass brings its own scale."""
    return HALF_SCALE if compute == torch.float16 and plan.reduction == "sum" else 1.0


def zero_sums(needed: list[bool], inputs: tuple[Tensor, ...]) -> list[Tensor | None]:
    """Return zeros for the gradient of each input, at least float32; None where none is needed."""
    return [
        torch.zeros(t.shape, dtype=_sum_dtype(t), device=t.device) if need else None
        for t, need in zip(inputs, needed, strict=True)
    ]


def join(plan: LossPlan, parts: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor, Tensor]:
    """Join loss, nll and correct of chunks, as the plan's reduction wants them."""
    loss, nll, correct = (torch.cat(column) for column in zip(*parts, strict=True))
    if plan.reduction == "none":
        return loss, nll, correct
    return loss.sum(), nll.sum(), correct.sum()


class _SumLoss(torch.autograd.Function):
    """Σ loss, with its gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, chunked: ChunkedLoss, *inputs: Tensor) -> tuple[Tensor, ...]:
        needed = list(ctx.needs_input_grad[1:])
        values, sums = chunked.gradients(needed, inputs, None)
        if chunked.scale > 1 and not _all_finite(sums):
            chunked.scale = 1.0  # overflow that no loss scaler could ever undo
            values, sums = chunked.gradients(needed, inputs, None)
        ctx.scale, ctx.dtypes = chunked.scale, [t.dtype for t in inputs]
        ctx.sums = sums
        loss, nll, correct = values
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        if ctx.sums is None:
            raise RuntimeError(
                "backward through this loss a second time: its gradients are gone; the first "
                "call needs retain_graph=True"
            )
        sums = ctx.sums
        factor = upstream / ctx.scale
        if torch._C._autograd._get_current_graph_task_keep_graph():
            scaled = [None if s is None else s * factor for s in sums]
        else:  # no second copy of the gradients, and none is touched for nothing
            ctx.sums = None
            is_one = factor.device.type == "cpu" and bool(factor == 1)  # a GPU would be waited for
            scaled = sums if is_one else [None if s is None else s.mul_(factor) for s in sums]
        del sums
        return None, *(
            None if s is None else s.to(dtype) for s, dtype in zip(scaled, ctx.dtypes, strict=True)
        )


class _TokenLoss(torch.autograd.Function):
    """Loss per token; each chunk is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, chunked: ChunkedLoss, *inputs: Tensor) -> tuple[Tensor, ...]:
        chunked.plan = chunked.plan.with_own_copies()  # the caller may fill its buffers anew
        ctx.chunked = chunked
        ctx.save_for_backward(*inputs)
        loss, nll, correct = chunked.values(*inputs)
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        inputs = ctx.saved_tensors
        _, sums = ctx.chunked.gradients(list(ctx.needs_input_grad[1:]), inputs, upstream)
        return None, *(
            None if s is None else s.to(t.dtype) for s, t in zip(sums, inputs, strict=True)
        )


def _all_finite(sums: list[Tensor | None]) -> bool:
    """Whether all sums are finite. Synchronises with the GPU once."""
    return bool(torch.stack([s.isfinite().all() for s in sums if s is not None]).all())


def _refuse_double_backward() -> None:
    if torch.is_grad_enabled():  # only under create_graph=True
        raise RuntimeError(DOUBLE_BACKWARD)


def _sum_dtype(t: Tensor) -> torch.dtype:
    return torch.float32 if t.dtype in (torch.float16, torch.bfloat16) else t.dtype
