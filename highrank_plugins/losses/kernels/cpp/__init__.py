"""Provide compiled kernels for CPUs, and check whether they can run here.

A thread takes a row of a chunk from its logits to their gradient while it is in cache, with
everything applied. For a Mixture of Softmaxes, a row is all components of a token. `build` compiles
the sources at the first use, with the installed C++ compiler; `passes` calls them.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from highrank_plugins.losses.chunked_head import ChunkedHead
from highrank_plugins.losses.kernels.cpp.build import Unavailable, library

# functions that the kernels compute, see `KernelFunction`; function.cpp has the same order
FAMILIES = ("identity", "gss", "logistic", "multimax", "plif")

logger = logging.getLogger(__name__)
_logged: set[str] = set()


def check_available(device: torch.device) -> None:
    """Check that the kernels can run on a device.

    Raises:
        ValueError: tensors lie on another device than the CPU, or the library is missing; the
            message names a remedy.
    """
    if device.type != "cpu":
        raise ValueError(
            f"impl: 'cpp' needs a CPU, but the features are on {device}; choose impl='fused' or "
            "'triton' (--head-loss)"
        )
    loaded = library()
    if isinstance(loaded, Unavailable):
        raise ValueError(
            f"impl: 'cpp' has no kernels: {loaded}; or choose impl='fused' (--head-loss fused)"
        )


def auto_takes(head: ChunkedHead, features: Tensor) -> bool:
    """Whether `auto` takes these kernels: on a CPU where they exist and know the function.

    float64 is left to torch, since the kernels compute its elementary functions one at a time.
    """
    if features.device.type != "cpu" or features.dtype == torch.float64:
        return False
    function = head.pointwise.kernel_function
    if function is None or function.family not in FAMILIES:
        return False
    loaded = library()
    if isinstance(loaded, Unavailable) and str(loaded) not in _logged:
        _logged.add(str(loaded))
        logger.warning("no compiled loss kernels; losses take up to 2.3 times as long: %s", loaded)
    return not isinstance(loaded, Unavailable)
