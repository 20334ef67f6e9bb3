"""Provide output layers in pure torch: structure × pointwise function.

>>> head = build_head("mixtape", num_classes=10_000, feature_dim=512, pointwise="gss")
>>> head(features)                                    # [..., 512] → log-probabilities [..., 10000]
>>> head.nll(features, target, reduction="sum").loss  # exact, memory-saving
"""

from __future__ import annotations

from highrank_plugins.heads.base import HEADS, Head, build_head, register_head
from highrank_plugins.heads.mixtape import Mixtape
from highrank_plugins.heads.moc import MixtureOfContexts
from highrank_plugins.heads.mos import MixtureOfSoftmaxes
from highrank_plugins.heads.pointwise import (
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
