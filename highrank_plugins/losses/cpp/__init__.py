"""Level `cpp`: the fused losses with compiled kernels for their elementwise passes, on a CPU.

Matrix products stay torch's. A thread takes a row of a chunk (all components of a token for a
Mixture of Softmaxes) from its logits to their gradient while it is in cache, with everything
applied. `build` compiles the kernels at the first use, by the C++ compiler that is there.
"""

from __future__ import annotations

from highrank_plugins.losses.cpp.available import auto_takes, check_available
from highrank_plugins.losses.cpp.registry import KERNEL_LOSSES
from highrank_plugins.losses.fused.kernel_passes import kernel_loss
from highrank_plugins.losses.fused.level import run_fused
from highrank_plugins.losses.plan import LossOutput, LossPlan

__all__ = ["auto_takes", "check_available", "cpp_nll"]


def cpp_nll(plan: LossPlan) -> LossOutput:
    """As `fused_nll`.

    Raises:
        ValueError: the kernels cannot be compiled or run here, or there are none for this head.
    """
    check_available(plan.features.device)
    return run_fused(plan, kernel_loss(KERNEL_LOSSES, plan.head.fused, "C++"))
