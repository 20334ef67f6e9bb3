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


def kernel_loss(fused: type[FusedLoss]) -> type[FusedLoss]:
    """The one that does the same with kernels.

    Raises:
        ValueError: there is none.
    """
    if fused not in KERNEL_LOSSES:
        raise ValueError(
            f"impl: there are no Triton kernels for {fused.__name__}; impl='fused' "
            "(--head-loss fused) serves it"
        )
    return KERNEL_LOSSES[fused]
