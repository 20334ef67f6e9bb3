"""Kernels in Triton, for GPUs, and whether they can run here.

A chunk lies in the compute dtype. A program reads a tile of rows × columns at a time, computes in
float32 (float64 for float64) and leaves the gradient in its place, with everything applied. Offsets
of rows are 64 bits wide: a chunk may have more than 2^31 numbers. This module imports without
triton; all others here, except `tiles`, need it.
"""

from __future__ import annotations

import torch

INSTEAD = "or choose impl='fused' (--head-loss fused)"


def check_available(device: torch.device) -> None:
    """Check that the kernels can run on a device.

    Raises:
        ValueError: triton cannot be imported, or tensors lie on a CPU and the kernels are compiled
            ones, not those of triton's interpreter; the message names a remedy.
    """
    try:
        import triton
    except ImportError as error:
        raise ValueError(
            f"impl: 'triton' needs the package triton ({error}); install it "
            f"(pip install 'triton>=3.4'), {INSTEAD}"
        ) from error
    from highrank_plugins.losses.kernels.triton.softmax import softmax_kernel

    if device.type == "cpu" and isinstance(softmax_kernel, triton.JITFunction):
        raise ValueError(
            "impl: 'triton' needs a GPU, the features lie on the CPU; move the model there, "
            f"set TRITON_INTERPRET=1 before python starts to try the kernels slowly, {INSTEAD}"
        )
