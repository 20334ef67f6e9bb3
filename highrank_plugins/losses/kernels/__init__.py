"""Provide sets of kernels: the elementwise passes of a fused loss over a chunk of logits.

`torch.Kernels` is one of them, and says what a set does; `cpp` and `triton` replace passes. Matrix
products are torch's with all of them.
"""

from __future__ import annotations

import torch

from highrank_plugins.losses.kernels import triton
from highrank_plugins.losses.kernels.cpp import build as cpp
from highrank_plugins.losses.kernels.cpp.passes import CppKernels
from highrank_plugins.losses.kernels.torch import Kernels


def kernels_of(impl: str, device: torch.device) -> type[Kernels] | None:
    """Return the kernels of an implementation; None for those without fused loss.

    Raises:
        ValueError: they cannot run on this device; the message names a remedy.
    """
    if impl == "cpp":
        cpp.check_available(device)
        return CppKernels
    if impl == "triton":
        triton.check_available(device)
        from highrank_plugins.losses.kernels.triton.passes import TritonKernels  # needs triton

        return TritonKernels
    return Kernels if impl == "fused" else None
