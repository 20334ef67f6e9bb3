"""Choose the implementation of a loss: the given one, or the one for `auto` on a device."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from highrank_plugins.common.names import did_you_mean, layer_name
from highrank_plugins.losses.chunked_head import ChunkedHead
from highrank_plugins.losses.kernels import check_available, cpp, triton

logger = logging.getLogger(__name__)

FUSED = ("fused", "cpp", "triton")  # for heads with a fused loss; they differ in their kernels
IMPLEMENTATIONS = ("reference", "chunked", *FUSED)
_logged: set[tuple[str, str]] = set()


def implementation_for(impl: str, head: ChunkedHead, features: Tensor, filtered: bool) -> str:
    """Return the implementation that computes the loss of a head; the log names the choice once.

    Args:
        impl: one of `IMPLEMENTATIONS`, or "auto".
        filtered: whether gradients are filtered, which only those in `FUSED` do.
    Raises:
        ValueError: an unknown name, or an implementation that does not support the options.
    """
    check_choice("impl", impl, ("auto", *IMPLEMENTATIONS))
    kind = layer_name(head)
    _check_fused(impl, head)
    chosen = _auto(head, features) if impl == "auto" else impl
    if impl == "auto":
        _log_once(
            logging.INFO, kind, chosen, "The loss of %s is computed by %r (--head-loss auto)."
        )
    _check_filtered(filtered, chosen)
    return chosen


def check_implementation(
    impl: str, head: ChunkedHead, device: torch.device, filtered: bool = False
) -> None:
    """Check that an implementation can compute the loss of a head on a device.

    Args:
        filtered: whether gradients are filtered.
    Raises:
        ValueError: it cannot; the message names a remedy.
    """
    _check_fused(impl, head)
    check_available(impl, device)
    if impl == "triton":
        triton.check_components(head)
    _check_filtered(filtered, "chunked" if impl == "auto" and head.fused is None else impl)


def implementation_here(impl: str, device: torch.device) -> str:
    """Return `impl`, or "auto" where it cannot run on this device; the log says why."""
    try:
        check_available(impl, device)
    except ValueError as error:
        message = f"loss: implementation 'auto' instead of %r on %s: {error}"
        _log_once(logging.WARNING, impl, device.type, message)
        return "auto"
    return "auto" if (impl, device.type) == ("triton", "cuda") else impl  # may fall back


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Check that a value is one of `known`.

    Raises:
        ValueError: it is not; the message has the nearest match.
    """
    if value not in known:
        hint = did_you_mean(str(value), known)
        raise ValueError(f"{name}: unknown {value!r}{hint}; known: {', '.join(known)}")


def _check_fused(impl: str, head: ChunkedHead) -> None:
    if impl in FUSED and head.fused is None:
        kind = layer_name(head)
        if type(head).fused is not None:
            kind += " with these options"  # e.g. Mixtape, with gates="softmax"
        raise ValueError(
            f"impl: {kind} has no fused loss; use impl='chunked' (--head-loss chunked)"
        )


def _check_filtered(filtered: bool, chosen: str) -> None:
    if filtered and chosen not in ("auto", *FUSED):
        raise ValueError(
            f"filter_gradients (--head-loss-filter): implementation {chosen!r} computes every "
            f"gradient; use impl= (--head-loss) {' or '.join(FUSED)}"
        )


def _auto(head: ChunkedHead, features: Tensor) -> str:
    if head.fused is None:
        return "chunked"
    if cpp.auto_takes(head, features):
        return "cpp"
    return "triton" if triton.auto_takes(head, features) else "fused"


def _log_once(level: int, subject: str, detail: str, message: str) -> None:
    if (subject, detail) not in _logged:
        _logged.add((subject, detail))
        logger.log(level, message, subject, detail)
