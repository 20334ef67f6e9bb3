"""Register pointwise functions by name, one module each."""

from __future__ import annotations

from typing import Any

from highrank_plugins.heads.pointwise.base import POINTWISE, Identity, Pointwise, register_pointwise
from highrank_plugins.heads.pointwise.caps import SigmoidCap, Softcap
from highrank_plugins.heads.pointwise.gss import GeneralizedSigSoftmax, SigSoftmax
from highrank_plugins.heads.pointwise.monotone_mlp import MonotoneMLP
from highrank_plugins.heads.pointwise.multimax import MultiMax
from highrank_plugins.heads.pointwise.plif import PLIF

__all__ = [
    "PLIF",
    "POINTWISE",
    "GeneralizedSigSoftmax",
    "Identity",
    "MonotoneMLP",
    "MultiMax",
    "Pointwise",
    "SigSoftmax",
    "SigmoidCap",
    "Softcap",
    "build_pointwise",
    "pointwise_names",
    "pointwise_options",
    "register_pointwise",
]

pointwise_names = POINTWISE.names
pointwise_options = POINTWISE.options


def build_pointwise(name: str | Pointwise, **options: Any) -> Pointwise:
    """Build the pointwise function called `name`, or return `name` if it is one already.

    Raises:
        ValueError: unknown name or option (with the nearest match), or a value out of range.
    """
    if isinstance(name, Pointwise):
        if options:
            raise ValueError(
                f"options {sorted(options)} given with a pointwise function that is built "
                "already; pass them to its constructor"
            )
        return name
    if not isinstance(name, str):
        raise ValueError(
            f"pointwise: expected a name or an instance of Pointwise, got {name!r}; write a class "
            "with apply_to, and pass an instance of it"
        )
    return POINTWISE.build(name, **options)
