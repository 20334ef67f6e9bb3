"""Losses with gradients written out, per structure of a head.

A chunk is its matrix products and one elementwise pass, in place; there is no graph over anything
of the size of the vocabulary. `FusedLogits` serves every head with one softmax, `FusedMixture` the
Mixture of Softmaxes, `FusedMixtape` Mixtape; `level` runs them over a batch.
"""

from __future__ import annotations

from highrank_plugins.losses.fused.base import FusedLoss
from highrank_plugins.losses.fused.logits import FusedLogits
from highrank_plugins.losses.fused.mixtape import FusedMixtape
from highrank_plugins.losses.fused.mixture import FusedMixture

__all__ = ["FusedLogits", "FusedLoss", "FusedMixtape", "FusedMixture"]
