"""Which losses have kernels."""

from __future__ import annotations

from highrank_plugins.losses.fused import FusedLogits, FusedLoss, FusedMixtape, FusedMixture
from highrank_plugins.losses.triton.logits import TritonLogits
from highrank_plugins.losses.triton.mixtape import TritonMixtape
from highrank_plugins.losses.triton.mixture import TritonMixture

KERNEL_LOSSES: dict[type[FusedLoss], type[FusedLoss]] = {
    FusedLogits: TritonLogits,
    FusedMixture: TritonMixture,
    FusedMixtape: TritonMixtape,
}
