"""Whether the kernels can run here, said before anything is computed."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from highrank_plugins.losses.cpp.build import Unavailable, library
from highrank_plugins.losses.cpp.registry import KERNEL_LOSSES
from highrank_plugins.losses.plan import ChunkedHead

logger = logging.getLogger(__name__)
_logged: set[str] = set()


def check_available(device: torch.device) -> None:
    """Nothing, or an error that names the remedy.

    Raises:
        ValueError: tensors lie on another device than the CPU, or there is no library.
    """
    if device.type != "cpu":
        raise ValueError(
            f"impl: 'cpp' works on a CPU, the features lie on {device}; choose impl='fused' or "
            "'triton' (--head-loss)"
        )
    loaded = library()
    if isinstance(loaded, Unavailable):
        raise ValueError(
            f"impl: 'cpp' has no kernels here: {loaded}; or choose impl='fused' (--head-loss fused)"
        )


def auto_takes(head: ChunkedHead, features: Tensor) -> bool:
    """Whether `auto` takes this level: on a CPU where the kernels are there and know the function.

    float64, whose elementary functions the kernels take one by one, is left to torch's.
    """
    if features.device.type != "cpu" or features.dtype == torch.float64:
        return False
    if head.fused not in KERNEL_LOSSES or head.pointwise.bent_line is None:
        return False
    loaded = library()
    if isinstance(loaded, Unavailable) and str(loaded) not in _logged:
        _logged.add(str(loaded))
        logger.warning("losses do without compiled kernels, a tenth slower: %s", loaded)
    return not isinstance(loaded, Unavailable)
