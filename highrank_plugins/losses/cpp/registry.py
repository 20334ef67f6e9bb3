"""Which losses have compiled kernels."""

from __future__ import annotations

from highrank_plugins.losses.cpp.logits import CppLogits
from highrank_plugins.losses.cpp.mixtape import CppMixtape
from highrank_plugins.losses.cpp.mixture import CppMixture
from highrank_plugins.losses.fused import FusedLogits, FusedLoss, FusedMixtape, FusedMixture

KERNEL_LOSSES: dict[type[FusedLoss], type[FusedLoss]] = {
    FusedLogits: CppLogits,
    FusedMixture: CppMixture,
    FusedMixtape: CppMixtape,
}
