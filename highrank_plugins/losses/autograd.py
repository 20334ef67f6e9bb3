"""Define autograd functions of losses that compute their own gradients, chunk by chunk.

Reduction "sum" computes gradients in the forward pass, while a chunk's logits exist, and only
scales them in the backward pass. Reduction "none" computes each chunk again in the backward pass,
where the upstream gradient of every token is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from highrank_plugins.common.torch_state import generators, set_generators

FEATURES = ""  # name of the features among the inputs of a loss, whose others are tensors of a head
DOUBLE_BACKWARD = (
    "this loss is differentiable once; for gradients of gradients (create_graph=True) use "
    "impl='reference' (--head-loss reference)"
)


def products_add_in_float32(device: torch.device) -> bool:
    """Whether tensor cores add products of half-precision matrices to float32: from sm_80 on."""
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type != "cpu"


class GradientSum:
    """Add up gradients in a tensor, whose content before the first of them does not matter."""

    def __init__(self, total: Tensor) -> None:
        self.total, self.is_empty = total, True

    def add(self, grad: Tensor) -> None:
        (self.total.copy_ if self.is_empty else self.total.add_)(grad)
        self.is_empty = False

    def add_product(self, grad: Tensor, rows: Tensor, kept: Tensor | None = None) -> None:
        """Add grad^T @ rows, whose dtype is that of the sum or narrower; to rows `kept` of it."""
        total = self.total
        if kept is not None:
            if self.is_empty:
                total.zero_()
            total.index_add_(0, kept, (grad.t() @ rows).to(total.dtype))
        elif rows.dtype == total.dtype:
            torch.addmm(total, grad.t(), rows, beta=float(not self.is_empty), out=total)
        elif total.dtype != torch.float32 or not products_add_in_float32(total.device):
            self.add(grad.t() @ rows)
        elif self.is_empty:
            torch.mm(grad.t(), rows, out_dtype=total.dtype, out=total)
        else:
            torch.addmm(total, grad.t(), rows, out_dtype=total.dtype, out=total)
        self.is_empty = False

    def finish(self) -> None:
        """Write zeros if there was no gradient."""
        if self.is_empty:
            self.total.zero_()


class SummedTensors(dict[str, Tensor]):
    """Hold the tensors of a block of tokens; `linear_of` adds their gradients to `sums`.

    Autograd would write the gradient of each weight and of the features as a tensor of its own for
    each block, in the dtype of products. Reading these back and adding them takes 1 to 2 % of a
    mixture's time on a GPU, by the roofline model.
    """

    def __init__(
        self, tensors: dict[str, Tensor], features: Tensor, sums: dict[str, GradientSum],
        compute: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__(tensors)
        self.features, self.sums, self.compute = features, sums, compute


def linear_of(features: Tensor, tensors: dict[str, Tensor], name: str) -> Tensor:
    """Return W g + b of features g; W and b are the tensors `name.weight` and `name.bias`."""
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    if isinstance(tensors, SummedTensors) and features is tensors.features:
        return _Linear.apply(tensors, name, features, weight, bias)
    return linear(features, weight, bias)


class _Linear(torch.autograd.Function):
    """Compute W g + b, and add all gradients to the sums of a block."""

    @staticmethod
    def forward(
        ctx: Any, tensors: SummedTensors, name: str, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.sums = [tensors.sums.get(n) for n in (FEATURES, f"{name}.weight", f"{name}.bias")]
        x, weight = x.to(tensors.compute), weight.to(tensors.compute)
        bias = None if bias is None else bias.to(tensors.compute)
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.sums
        if of_x is not None:
            of_x.add_product(grad.t(), weight)
        if of_weight is not None:
            of_weight.add_product(grad, x)
        if of_bias is not None:
            of_bias.add(grad.sum(0, dtype=of_bias.total.dtype))
        return (None,) * 5


class SumLoss(torch.autograd.Function):
    """Sum the loss of a `runner.Runner`, with its gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, batch: Any, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        needed = list(ctx.needs_input_grad[1:])
        values, ctx.sums = batch.gradients(needed, inputs, 1.0)
        if batch.scale > 1:
            finite = torch.stack([s.isfinite().all() for s in ctx.sums if s is not None])
            if not bool(finite.all()):  # synchronises with a GPU once
                batch.scale = 1.0  # no loss scaler could undo this overflow
                values, ctx.sums = batch.gradients(needed, inputs, 1.0)
        ctx.scale, ctx.dtypes = batch.scale, [t.dtype for t in inputs]
        ctx.mark_non_differentiable(*(t for t in values[1:] if t is not None))
        return tuple(values)

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
        by = None if factor.is_cpu and bool(factor == 1) else factor  # a GPU would synchronise
        # one by one, so that the gradients do not exist twice
        return None, *(_scaled(sums.pop(0), by, dtype) for dtype in ctx.dtypes)


class TokenLoss(torch.autograd.Function):
    """Return the loss per token; the backward pass computes each chunk again."""

    @staticmethod
    def forward(ctx: Any, batch: Any, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        plan = batch.plan
        weight, label = (None if t is None else t.clone() for t in (plan.weight, plan.label))
        soft = plan.soft and plan.soft.without_buffers(len(plan.target))
        # the caller may refill its buffers
        batch.plan = plan = replace(
            plan, target=plan.target.clone(), weight=weight, label=label, soft=soft
        )
        ctx.batch, ctx.versions = batch, _versions(plan.soft)
        # our layers draw their random numbers before the loss is cut into chunks
        ctx.random = generators(inputs[0]) if plan.own else []
        ctx.save_for_backward(*inputs)
        values, _ = batch.gradients([False] * len(inputs), inputs, None)
        ctx.mark_non_differentiable(*(t for t in values[1:] if t is not None))
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _refuse_double_backward()
        inputs = ctx.saved_tensors
        if _versions(ctx.batch.plan.soft) != ctx.versions:
            raise RuntimeError(
                "a tensor of the target was changed in place before backward(), which reads it "
                "again; make a new one, or change it later"
            )
        now = generators(inputs[0]) if ctx.random else []
        set_generators(ctx.random)  # the masks of the forward pass
        _, sums = ctx.batch.gradients(list(ctx.needs_input_grad[1:]), inputs, upstream)
        set_generators(now)
        return None, *(_scaled(s, None, t.dtype) for s, t in zip(sums, inputs, strict=True))


def _versions(soft: Any) -> list[int]:
    """Count the changes of the tensors of a `targets.Target`; labels are copied instead."""
    return [t._version for t in (soft.read() if soft else ()) if not t.is_inference()]


def _scaled(total: Tensor | None, factor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return total × factor (None: 1) in `dtype`, in one pass; `total` may be overwritten."""
    if total is None or factor is None:
        return None if total is None else total.to(dtype)
    out = total if dtype == total.dtype else torch.empty_like(total, dtype=dtype)
    return torch.mul(total, factor, out=out)


def _refuse_double_backward() -> None:
    if torch.is_grad_enabled():  # only under create_graph=True
        raise RuntimeError(DOUBLE_BACKWARD)
