"""Provide kernels in Triton, for GPUs, and check whether they can run here.

A chunk lies in the compute dtype. A program reads a tile of rows × columns at a time, computes in
float32 (float64 for float64) and leaves the gradient in its place, with everything applied. Offsets
of rows are 64 bits wide: a chunk may have more than 2^31 numbers. This module imports without
triton; all others here, except `tiles`, need it.
"""

from __future__ import annotations

import functools
import logging
import subprocess

import torch
from torch import Tensor

from highrank_plugins.losses.chunked_head import ChunkedHead
from highrank_plugins.losses.kernels.triton.tiles import COMPONENTS

logger = logging.getLogger(__name__)

# functions that the kernels compute, see `KernelFunction`
FAMILIES = ("identity", "gss", "logistic", "multimax", "plif")
INSTEAD = "or choose impl='fused' (--head-loss fused)"
LEAST_CAPABILITY = (7, 0)
_ruled_out: set[type] = set()


class CannotCompile(ValueError):
    """Report a kernel that triton does not compile here, with a remedy."""


def check_available(device: torch.device) -> None:
    """Check that the kernels can run on a device.

    Raises:
        ValueError: triton cannot be imported, or a first launch on the GPU fails. Or tensors lie
            on a CPU without triton's interpreter. The message names a remedy.
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
            "impl: 'triton' needs a GPU, but the features are on the CPU; move the model to a GPU, "
            f"set TRITON_INTERPRET=1 before Python starts to interpret the kernels, {INSTEAD}"
        )
    reason = launch_failure(device) if device.type == "cuda" else None
    if reason is not None:
        raise ValueError(f"impl: 'triton' cannot run on {device}: {reason}; {INSTEAD}")


def check_components(head: ChunkedHead) -> None:
    """Check that a thread can hold the components of a head, see `tiles.COMPONENTS`.

    Raises:
        ValueError: they do not; the message names a remedy.
    """
    if head.fused is None or not head.fused.holds_components:
        return
    components = getattr(head, "components", 1)
    dtype = dict(head.named_parameters())["weight"].dtype
    most = COMPONENTS[max(dtype.itemsize, min(COMPONENTS))]
    if components > most:
        raise ValueError(
            f"impl: 'triton' supports at most {most} components in {dtype}, but the layer has "
            f"{components} (--head-components); use fewer, {INSTEAD}"
        )


def auto_takes(head: ChunkedHead, features: Tensor) -> bool:
    """Whether `auto` takes these kernels: on a CUDA device where all that were tried compile."""
    if features.device.type != "cuda" or type(head) in _ruled_out:
        return False
    try:
        check_available(features.device)
        check_components(head)
    except ValueError as error:
        _warn_once(str(error))
        return False
    return True


def rule_out(head: ChunkedHead, error: CannotCompile) -> None:
    """Take these kernels from `auto` for layers of this class, and say why."""
    _ruled_out.add(type(head))
    _warn_once(str(error))


@functools.cache
def launch_failure(device: torch.device) -> str | None:
    """Return why a kernel does not run on a CUDA device, after one small launch; None if it does.

    Triton compiles its launcher with a C compiler, and only a launch shows whether one exists.
    """
    from triton.errors import TritonError

    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        found, least = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        return f"its compute capability is {found}, but Triton's kernels need {least}"
    try:
        first_launch(device)
    except (TritonError, RuntimeError, OSError, ImportError, subprocess.SubprocessError) as error:
        line = str(error).strip().splitlines()[:1] or [type(error).__name__]
        return f"{line[0]} (Triton needs a C compiler: install gcc, or name one in CC)"
    return None


def first_launch(device: torch.device) -> None:
    """Run the smallest kernel, and wait for it."""
    from highrank_plugins.losses.kernels.triton.softmax import softmax_kernel

    logits, nll = torch.zeros(1, 2, device=device), torch.empty(1, device=device)
    target = torch.zeros(1, dtype=torch.int64, device=device)
    with torch.cuda.device_of(logits):
        softmax_kernel[(1,)](
            logits, 2, None, target, None, nll, None, None, None, None, None, None, None, 1, 2,
            None, 1, ("identity",), 1.0, 1.0, 0.0, 0.0, ROWS=1, COLUMNS=2, num_warps=1,
        )  # fmt: skip
        torch.cuda.synchronize()


@functools.cache
def _warn_once(reason: str) -> None:
    logger.warning("Triton's kernels cannot run; losses are several times slower: %s", reason)
