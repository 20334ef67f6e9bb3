"""Compute pointwise functions in a kernel: f(z) = z + (k − 1) log σ(z − c).

That is GSS; c = 0, k = 2 is SigSoftmax, k = 1 the identity. c and k are compiled in.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Triton's interpreter has none of the hardware's functions.
HARDWARE: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def gss(z, c: tl.constexpr, k: tl.constexpr):
    """Return f(z)."""
    value = z
    if k != 1:
        x = z - c
        softplus = fast_log(1.0 + tl.exp(-tl.abs(x)))
        value = z + (k - 1) * (tl.minimum(x, 0.0) - softplus)  # log σ(x), without overflow
    return value


@triton.jit
def times_gss_slope(grad, z, c: tl.constexpr, k: tl.constexpr):
    """Return grad f'(z), with f'(z) = k − (k − 1) σ(z − c)."""
    value = grad
    if k != 1:
        value = grad * (k - (k - 1) * tl.sigmoid(z - c))
    return value


@triton.jit
def fast_log(x):
    """log x of numbers from 1 on; in float32 by one instruction, with an error of 2^-22."""
    return libdevice.fast_logf(x) if HARDWARE and x.dtype == tl.float32 else tl.log(x)
