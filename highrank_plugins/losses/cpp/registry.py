"""Which losses have compiled kernels."""

from __future__ import annotations

from ..fused import FusedLogits, FusedLoss, FusedMixtape, FusedMixture
from .logits import CppLogits
from .mixtape import CppMixtape
from .mixture import CppMixture

KERNEL_LOSSES: dict[type[FusedLoss], type[FusedLoss]] = {
    FusedLogits: CppLogits,
    FusedMixture: CppMixture,
    FusedMixtape: CppMixtape,
}
