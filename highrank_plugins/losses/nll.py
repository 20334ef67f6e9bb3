"""Compute a loss by one of its implementations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from highrank_plugins.common.not_compiled import not_compiled
from highrank_plugins.losses.arguments import (
    check_devices,
    check_options,
    check_target,
    check_whole,
)
from highrank_plugins.losses.choice import implementation_for
from highrank_plugins.losses.chunked import chunked_nll
from highrank_plugins.losses.chunked_head import ChunkedHead
from highrank_plugins.losses.contract import checked_implementation
from highrank_plugins.losses.fused.runner import fused_nll
from highrank_plugins.losses.kernels import kernels_of
from highrank_plugins.losses.own_layers import is_ours
from highrank_plugins.losses.plan import LossOutput, LossPlan
from highrank_plugins.losses.reference import reference_nll


@not_compiled  # a loss with its own gradients must not be traced
def compute_nll(
    head: ChunkedHead,
    features: Tensor,
    target: Tensor,
    random_state: Any,
    *,
    leading: torch.Size,
    weight: Tensor | None,
    label_smoothing: float,
    ignore_index: int | None,
    reduction: str,
    impl: str,
    memory: int | None,
    accuracy: bool,
    filter_gradients: bool,
    entropy: bool,
    z_loss: float,
) -> LossOutput:
    """Return `Head.nll` of flat features [N, F]; `leading` is the shape of target and result.

    Raises:
        ValueError: an argument out of range; see `Head.nll`.
    """
    check_devices(features, target, weight)
    check_options(leading, weight, label_smoothing, reduction, z_loss, memory)
    chosen = implementation_for(impl, head, features, filter_gradients)
    check_whole(head.named_parameters())
    flat_target, ignored = check_target(target, leading, head.num_classes, ignore_index)
    plan = LossPlan(
        head=head,
        features=features,
        target=flat_target,
        ignored=ignored,
        weight=None if weight is None else weight.detach().reshape(-1),
        random_state=random_state,
        label_smoothing=label_smoothing,
        reduction="none" if reduction == "none" else "sum",
        memory=memory,
        accuracy=accuracy,
        filter_gradients=filter_gradients,
        entropy=entropy,
        z_loss=z_loss,
        own=not is_ours(head),
        falls_back=impl == "auto",
    )
    if plan.own:
        chosen = checked_implementation(plan, chosen, _compute)
    out = _compute(chosen, plan)
    if reduction == "sum":
        return out
    if reduction == "mean":
        return _mean(plan, out)
    return out.map(lambda t: t.view(leading))


def _compute(impl: str, plan: LossPlan) -> LossOutput:
    if impl == "reference":
        return reference_nll(plan)
    if impl == "chunked":
        return chunked_nll(plan)
    return fused_nll(plan, kernels_of(impl, plan.features.device))


def _mean(plan: LossPlan, total: LossOutput) -> LossOutput:
    """Return means over the tokens that are not ignored.

    Where there are none, means are NaN and gradients zero, as in torch's cross_entropy.
    """
    ones = torch.ones_like(plan.target, dtype=total.nll.dtype)
    count = plan.blank(ones, 0, len(ones)).sum()
    weights = count
    if plan.weight is not None:
        weights = plan.blank(plan.weight.to(ones.dtype), 0, len(ones)).sum()
    means = total.map(lambda t: _ratio(t, count))
    return means._replace(loss=_ratio(total.loss, weights))


def _ratio(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count; NaN without gradients where count is 0."""
    # a division by 0 would send an infinite gradient back, and infinity times 0 is NaN
    some = count != 0
    return torch.where(some, total / torch.where(some, count, 1), torch.nan)
