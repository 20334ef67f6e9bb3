"""Provide kernels in Triton, for GPUs, and check whether they can run here.

A chunk lies in the compute dtype. A program reads a tile of rows × columns at a time, computes in
float32 (float64 for float64) and leaves the gradient in its place, with everything applied. Offsets
of rows are 64 bits wide: a chunk may have more than 2^31 numbers. This module imports without
triton; all others here, except `tiles`, need it.
"""

from __future__ import annotations

import torch

from highrank_plugins.losses.kernels.compiled import INSTEAD
from highrank_plugins.losses.kernels.torch import Kernels
from highrank_plugins.losses.kernels.triton.tiles import COMPONENTS
from highrank_plugins.losses.plan import AnyHead
from highrank_plugins.own_layers.ours import stored_matrix

LEAST_CAPABILITY = (7, 0)


def check_available(device: torch.device) -> None:
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
            "impl: 'triton' needs a GPU, but the features are on the CPU; move the model to a GPU, "
            f"set TRITON_INTERPRET=1 before Python starts to interpret the kernels, {INSTEAD}"
        )
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        raise ValueError(
            f"impl: 'triton' cannot run on {device}: its compute capability is {found}, but "
            f"Triton's kernels need {least}; {INSTEAD}"
        )


def kernels(head: AnyHead) -> type[Kernels]:
    """Return the kernels; refuse a head with more components than a thread can hold."""
    from highrank_plugins.losses.kernels.triton.passes import TritonKernels  # needs triton

    if head is not None and head.fused is not None and head.fused.holds_components:
        components, dtype = getattr(head, "components", 1), stored_matrix(head).dtype
        most = COMPONENTS[max(dtype.itemsize, min(COMPONENTS))]
        if components > most:
            raise ValueError(
                f"impl: 'triton' supports at most {most} components in {dtype}, but the layer has "
                f"{components} (--head-components); use fewer, {INSTEAD}"
            )
    return TritonKernels
