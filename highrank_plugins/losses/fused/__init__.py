"""Compute losses with gradients written out, per structure of a head.

A chunk is its matrix products and one elementwise pass, in place; no graph is kept over anything
of the size of the vocabulary. `FusedLogits` serves every head with one softmax, `FusedMixture` the
Mixture of Softmaxes, `FusedMixtape` Mixtape. `runner` runs them over a batch with some `kernels`.
"""

from __future__ import annotations

from highrank_plugins.losses.fused.base import FusedLoss
from highrank_plugins.losses.fused.mixtape import FusedMixtape
from highrank_plugins.losses.fused.mos import FusedMixture
from highrank_plugins.losses.fused.softmax import FusedLogits

__all__ = ["FusedLogits", "FusedLoss", "FusedMixtape", "FusedMixture"]
