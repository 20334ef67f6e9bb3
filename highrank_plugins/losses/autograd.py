"""Define autograd functions of losses that compute their own gradients, chunk by chunk.

Reduction "sum" computes gradients in the forward pass, while a chunk's logits exist, and only
scales them in the backward pass. Reduction "none" computes each chunk again in the backward pass,
where the upstream gradient of every token is known.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from highrank_plugins.losses.plan import ChunkResults, LossOutput, LossPlan

DOUBLE_BACKWARD = (
    "this loss is differentiable once; for gradients of gradients (create_graph=True) use "
    "impl='reference' (--head-loss reference)"
)


class ChunkedLoss(Protocol):
    """Compute the loss of a `LossPlan` on explicit inputs: features, then tensors."""

    plan: LossPlan
    scale: float

    def values(self, *inputs: Tensor) -> LossOutput:
        """Return the output as the plan's reduction wants it, without gradients."""

    def gradients(
        self, needed: list[bool], inputs: tuple[Tensor, ...], upstream: Tensor | None
    ) -> tuple[LossOutput, list[Tensor | None]]:
        """Return the values, and gradients of Σ_n upstream_n loss_n times `scale`.

        Half-precision gradients of tensors are sums over chunks in float32. Inputs that need no
        gradient get None.
        """


def once_differentiable_nll(chunked: ChunkedLoss, inputs: tuple[Tensor, ...]) -> LossOutput:
    """Return the loss of a batch, with gradients for those inputs that need them."""
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in inputs)):
        return chunked.values(*inputs)
    function = _SumLoss if chunked.plan.reduction == "sum" else _TokenLoss
    return LossOutput(*function.apply(chunked, *inputs))


@contextmanager
def inner_graph(recorded: bool = True) -> Iterator[None]:
    """Record a graph that ends within the loss, and save its tensors without the caller's hooks.

    Hooks of `torch.utils.checkpoint` would run the whole loss again for each block, and hooks of
    `save_on_cpu` would copy contexts to the host.
    """
    # a saved output with its graph would keep itself alive, unless a backward pass frees it
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (t.detach(), t._version), _unchanged)
    with torch.set_grad_enabled(recorded), hooks:
        yield


def _unchanged(saved: tuple[Tensor, int]) -> Tensor:
    tensor, version = saved
    if tensor._version != version:  # torch's own check ends with the hooks
        raise RuntimeError(
            "a tensor that the gradient of the loss needs was changed in place; return a new one"
        )
    return tensor


def generators(like: Tensor) -> list[Tensor]:
    """Return the states of torch's default generators of the CPU and of the current GPU."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if like.is_cuda else states


def set_generators(states: list[Tensor]) -> None:
    """Set the states that `generators` returned."""
    for state in states[:1]:
        torch.set_rng_state(state)
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


def new_sums(
    needed: list[bool], inputs: tuple[Tensor, ...], overwritten: Container[int] = ()
) -> list[Tensor | None]:
    """Return zeros for the gradient of each input, at least float32; None where none is needed.

    The features, the first input, keep their dtype, because no token's gradient is a sum over
    chunks.

    Args:
        overwritten: indices of inputs whose sums may hold anything.
    """
    dtypes = [torch.promote_types(t.dtype, torch.float32) for t in inputs]
    dtypes[0] = inputs[0].dtype
    return [
        (torch.empty if i in overwritten else torch.zeros)(t.shape, dtype=dtype, device=t.device)
        if need
        else None
        for i, (t, need, dtype) in enumerate(zip(inputs, needed, dtypes, strict=True))
    ]


def reduced(plan: LossPlan, rows: ChunkResults) -> LossOutput:
    """Return the outputs [n] of all chunks in the form of the plan's reduction."""
    output = LossOutput(*rows.columns)
    return output if plan.reduction == "none" else output.map(torch.sum)


class _SumLoss(torch.autograd.Function):
    """Sum the loss, with its gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, chunked: ChunkedLoss, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        needed = list(ctx.needs_input_grad[1:])
        values, sums = chunked.gradients(needed, inputs, None)
        if chunked.scale > 1:
            finite = torch.stack([s.isfinite().all() for s in sums if s is not None])
            if not bool(finite.all()):  # synchronises with a GPU once
                chunked.scale = 1.0  # no loss scaler could undo this overflow
                values, sums = chunked.gradients(needed, inputs, None)
        ctx.scale, ctx.dtypes = chunked.scale, [t.dtype for t in inputs]
        ctx.sums = sums
        return _only_loss_differentiable(ctx, values)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        if ctx.sums is None:
            raise RuntimeError(
                "backward through this loss a second time: its gradients are freed. Pass "
                "retain_graph=True to the first call"
            )
        sums = ctx.sums
        factor = upstream / ctx.scale
        if torch._C._autograd._get_current_graph_task_keep_graph():
            sums = [None if s is None else s.clone() for s in sums]
        else:
            ctx.sums = None
        is_one = factor.device.type == "cpu" and bool(factor == 1)  # a GPU would synchronise
        by = None if is_one else factor
        # one by one, so that the gradients do not exist twice
        return None, *(_scaled(sums.pop(0), by, dtype) for dtype in ctx.dtypes)


class _TokenLoss(torch.autograd.Function):
    """Return the loss per token; the backward pass computes each chunk again."""

    @staticmethod
    def forward(ctx: Any, chunked: ChunkedLoss, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        chunked.plan = chunked.plan.with_own_copies()  # the caller may refill its buffers
        ctx.chunked = chunked
        # our layers draw their random numbers before the loss is cut into chunks
        ctx.random = generators(inputs[0]) if chunked.plan.own else []
        ctx.save_for_backward(*inputs)
        return _only_loss_differentiable(ctx, chunked.values(*inputs))

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        inputs = ctx.saved_tensors
        now = generators(inputs[0]) if ctx.random else []
        set_generators(ctx.random)  # the masks of the forward pass
        _, sums = ctx.chunked.gradients(list(ctx.needs_input_grad[1:]), inputs, upstream)
        set_generators(now)
        return None, *(
            None if s is None else s.to(t.dtype) for s, t in zip(sums, inputs, strict=True)
        )


def _only_loss_differentiable(ctx: Any, values: LossOutput) -> tuple[Tensor | None, ...]:
    ctx.mark_non_differentiable(*(t for t in values[1:] if t is not None))
    return tuple(values)


def _scaled(total: Tensor | None, factor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return total × factor (None: 1) in `dtype`, in one pass; `total` may be overwritten."""
    if total is None or factor is None:
        return None if total is None else total.to(dtype)
    out = total if dtype == total.dtype else torch.empty_like(total, dtype=dtype)
    return torch.mul(total, factor, out=out)


def _refuse_double_backward() -> None:
    if torch.is_grad_enabled():  # only under create_graph=True
        raise RuntimeError(DOUBLE_BACKWARD)
