"""The levels by name, and the one door to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.common.suggest import did_you_mean
from highrank_plugins.losses import cpp, triton
from highrank_plugins.losses.chunked import chunked_nll
from highrank_plugins.losses.fused.level import fused_nll
from highrank_plugins.losses.plan import REDUCTIONS, ChunkedHead, LossOutput, LossPlan, check_target
from highrank_plugins.losses.reference import reference_nll

logger = logging.getLogger(__name__)

LEVELS: dict[str, Callable[[LossPlan], LossOutput]] = {
    "reference": reference_nll,
    "chunked": chunked_nll,
    "fused": fused_nll,
    "cpp": cpp.cpp_nll,
    "triton": triton.triton_nll,
}
CHECKS = {"cpp": cpp.check_available, "triton": triton.check_available}
FUSED = ("fused", "cpp", "triton")  # levels of heads with a fused loss
_logged: set[tuple[str, str]] = set()


def compute_nll(
    head: ChunkedHead,
    features: Tensor,
    target: Tensor,
    draws: Any,
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
    """`Head.nll` on flat features [N, F]; `leading` is the shape of target and of the result.

    Raises:
        ValueError: an argument out of range; see `Head.nll`.
    """
    _check_choice("impl", impl, ["auto", *LEVELS])
    _check_choice("reduction", reduction, list(REDUCTIONS))
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
        draws=draws,
        label_smoothing=label_smoothing,
        reduction=reduction,
        memory=memory,
        accuracy=accuracy,
        filter_gradients=filter_gradients,
    )
    level = _choose(impl, head, features)
    if filter_gradients and level not in FUSED:
        raise ValueError(
            f"filter_gradients: level {level!r} computes every gradient; "
            f"use impl= (--head-loss) {' or '.join(FUSED)}"
        )
    out = LEVELS[level](plan)
    if reduction == "sum":
        return out
    correct = None if out.correct is None else out.correct.view(leading)
    return LossOutput(out.loss.view(leading), out.nll.view(leading), correct)


def level_here(impl: str, device: torch.device) -> str:
    """`impl`, or "auto" where that level cannot run on this device; the log says why."""
    try:
        CHECKS.get(impl, _any_device)(device)
    except ValueError as error:
        if (impl, device.type) not in _logged:
            _logged.add((impl, device.type))
            logger.warning("loss: level 'auto' instead of %r: %s", impl, error)
        return "auto"
    return impl


def _any_device(_device: torch.device) -> None:
    pass


def _choose(impl: str, head: ChunkedHead, features: Tensor) -> str:
    kind = type(head).__name__
    if impl in FUSED and head.fused is None:
        raise ValueError(f"impl: {kind} has no fused loss; impl='chunked' (--head-loss) serves it")
    if impl != "auto":
        return impl
    if head.fused is None:
        level = "chunked"
    else:
        level = "cpp" if cpp.auto_takes(head, features) else "fused"
    if (kind, level) not in _logged:
        _logged.add((kind, level))
        logger.info("loss of %s: level %r (impl='auto')", kind, level)
    return level


def _check_choice(name: str, value: str, known: list[str]) -> None:
    if value not in known:
        near = did_you_mean(str(value), known)
        raise ValueError(f"{name}: unknown {value!r}{near}; known: {', '.join(known)}")
