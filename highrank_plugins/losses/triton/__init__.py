"""Level `triton`: the fused losses with kernels for their elementwise passes.

Matrix products stay torch's. A chunk lies in the compute dtype; a kernel reads it, computes in
float32 (float64 for float64) and leaves the gradient in its place, with everything applied. This
module imports without triton; `triton_nll` says so where it is missing.
"""

from __future__ import annotations

import torch

from highrank_plugins.losses.fused.kernel_passes import kernel_loss
from highrank_plugins.losses.fused.level import run_fused
from highrank_plugins.losses.plan import LossOutput, LossPlan
from highrank_plugins.losses.triton.available import check_available

__all__ = ["check_available", "triton_nll"]


def triton_nll(plan: LossPlan) -> LossOutput:
    """As `fused_nll`.

    Raises:
        ValueError: the kernels cannot run here, or there are none for this head.
    """
    check_available(plan.features.device)
    from highrank_plugins.losses.triton.registry import KERNEL_LOSSES  # needs triton

    with torch.cuda.device_of(plan.features):  # kernels start on the current device
        return run_fused(plan, kernel_loss(KERNEL_LOSSES, plan.head.fused, "Triton"))
