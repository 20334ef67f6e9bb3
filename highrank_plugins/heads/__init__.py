"""Provide output layers in pure torch: structure × pointwise function.

>>> head = build_head("mixtape", num_classes=10_000, feature_dim=512, pointwise="gss")
>>> head(features)                                    # [..., 512] → log-probabilities [..., 10000]
>>> head.nll(features, target, reduction="sum").loss  # exact, memory-saving
"""

from __future__ import annotations

from typing import Any

import highrank_plugins.heads.tokens  # noqa: F401  (refuses a layer with the name of another)
from highrank_plugins.heads.base import HEADS, Head, register_head
from highrank_plugins.heads.mixtape import Mixtape
from highrank_plugins.heads.mixtures import MixtureOfContexts, MixtureOfSoftmaxes
from highrank_plugins.heads.pointwise import (
    POINTWISE,
    Pointwise,
    build_pointwise,
    pointwise_names,
    pointwise_options,
    register_pointwise,
)
from highrank_plugins.heads.softmax import Softmax

__all__ = [
    "Head",
    "Mixtape",
    "MixtureOfContexts",
    "MixtureOfSoftmaxes",
    "Pointwise",
    "Softmax",
    "build_head",
    "build_pointwise",
    "head_names",
    "head_options",
    "pointwise_names",
    "pointwise_options",
    "register_head",
    "register_pointwise",
]

head_names = HEADS.names
head_options = HEADS.options


def build_head(name: str, **options: Any) -> Head:
    """Build the output layer called `name`.

    Args:
        name: a structure, see `head_names()`.
        options: `num_classes`, `feature_dim`, `embed_dim`, `weight`, `bias`, `pointwise` (see
            `Head`) and the structure's own, see `head_options(name)`.
    Raises:
        ValueError: unknown name or option (with the nearest match), or a value out of range.
    """
    if name in POINTWISE.names():
        raise ValueError(
            f"{name!r} is a pointwise function, not a head: build_head('softmax', "
            f"pointwise={name!r}), or any other structure with it"
        )
    return HEADS.build(name, **options)
