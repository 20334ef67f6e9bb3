"""Which losses have kernels."""

from __future__ import annotations

from ..fused import FusedLogits, FusedLoss, FusedMixtape, FusedMixture
from .logits import TritonLogits
from .mixtape import TritonMixtape
from .mixture import TritonMixture

KERNEL_LOSSES: dict[type[FusedLoss], type[FusedLoss]] = {
    FusedLogits: TritonLogits,
    FusedMixture: TritonMixture,
    FusedMixtape: TritonMixtape,
}
