"""The choice of an implementation of the loss, and the one door to all of them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.losses.chunked import chunked_nll
from highrank_plugins.losses.fused.runner import fused_nll
from highrank_plugins.losses.kernels import check_available, cpp, kernels_of
from highrank_plugins.losses.plan import REDUCTIONS, ChunkedHead, LossOutput, LossPlan, check_target
from highrank_plugins.losses.reference import reference_nll

logger = logging.getLogger(__name__)

FUSED = ("fused", "cpp", "triton")  # for heads with a fused loss; they differ in their kernels
IMPLEMENTATIONS = ("reference", "chunked", *FUSED)
_logged: set[tuple[str, str]] = set()

P = ParamSpec("P")
R = TypeVar("R")


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep `torch.compile` out of a function.

    `torch.compiler.disable` does this, but takes as long to import as torch itself.
    """

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(function)(*args, **options)
        return function(*args, **options)

    return call


@not_compiled  # a loss that writes its gradients is not to be traced
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
) -> LossOutput:
    """Return `Head.nll` of flat features [N, F]; `leading` is the shape of target and result.

    Raises:
        ValueError: an argument out of range; see `Head.nll`.
    """
    _check_choice("impl", impl, ("auto", *IMPLEMENTATIONS))
    _check_choice("reduction", reduction, REDUCTIONS)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
    flat_target, ignored = check_target(target, leading, head.num_classes, ignore_index)
    if weight is not None and weight.shape != leading:
        raise ValueError(
            f"weight: expected the shape of target {tuple(leading)}, got {tuple(weight.shape)}"
        )
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
    )
    chosen = _choose(impl, head, features)
    if filter_gradients and chosen not in FUSED:
        raise ValueError(
            f"filter_gradients: implementation {chosen!r} computes every gradient; "
            f"use impl= (--head-loss) {' or '.join(FUSED)}"
        )
    if chosen == "reference":
        out = reference_nll(plan)
    elif chosen == "chunked":
        out = chunked_nll(plan)
    else:
        out = fused_nll(plan, kernels_of(chosen, features.device))
    if reduction == "sum":
        return out
    if reduction == "mean":
        return _mean(plan, out)
    correct = None if out.correct is None else out.correct.view(leading)
    return LossOutput(out.loss.view(leading), out.nll.view(leading), correct)


def implementation_here(impl: str, device: torch.device) -> str:
    """Return `impl`, or "auto" where it cannot run on this device; the log says why."""
    try:
        check_available(impl, device)
    except ValueError as error:
        if (impl, device.type) not in _logged:
            _logged.add((impl, device.type))
            logger.warning("loss: implementation 'auto' instead of %r: %s", impl, error)
        return "auto"
    return impl


def _choose(impl: str, head: ChunkedHead, features: Tensor) -> str:
    kind = type(head).__name__
    if impl in FUSED and head.fused is None:
        raise ValueError(f"impl: {kind} has no fused loss; impl='chunked' (--head-loss) serves it")
    if impl != "auto":
        return impl
    if head.fused is None:
        chosen = "chunked"
    else:
        chosen = "cpp" if cpp.auto_takes(head, features) else "fused"
    if (kind, chosen) not in _logged:
        _logged.add((kind, chosen))
        logger.info("loss of %s: implementation %r (impl='auto')", kind, chosen)
    return chosen


def _mean(plan: LossPlan, total: LossOutput) -> LossOutput:
    """Return means over the tokens that are not ignored; NaN where there are none."""
    ones = torch.ones_like(plan.target, dtype=total.nll.dtype)
    count = plan.blank(ones, 0, len(ones)).sum()
    weights = count
    if plan.weight is not None:
        weights = plan.blank(plan.weight.to(ones.dtype), 0, len(ones)).sum()
    correct = None if total.correct is None else total.correct / count
    return LossOutput(total.loss / weights, total.nll / count, correct)


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise ValueError(f"{name}: unknown {value!r}{hint}; known: {', '.join(known)}")
