"""Provide sets of kernels: the elementwise passes of a fused loss over a chunk of logits.

`base.Kernels` says what a set of kernels does; `torch`, `cpp` and `triton` do it. Matrix products
are torch's with all of them.
"""

from __future__ import annotations

import torch

from highrank_plugins.losses.kernels import cpp, triton
from highrank_plugins.losses.kernels.base import Kernels
from highrank_plugins.losses.kernels.cpp.passes import CppKernels
from highrank_plugins.losses.kernels.torch import TorchKernels


def kernels_of(impl: str, device: torch.device) -> type[Kernels]:
    """Return the kernels of an implementation "fused", "cpp" or "triton".

    Raises:
        ValueError: they cannot run on this device; the message names a remedy.
    """
    check_available(impl, device)
    if impl == "cpp":
        return CppKernels
    if impl == "triton":
        from highrank_plugins.losses.kernels.triton.passes import TritonKernels  # needs triton

        return TritonKernels
    return TorchKernels


def check_available(impl: str, device: torch.device) -> None:
    """Check that an implementation can run on a device.

    Raises:
        ValueError: it cannot; the message names a remedy.
    """
    if impl == "cpp":
        cpp.check_available(device)
    elif impl == "triton":
        triton.check_available(device)
