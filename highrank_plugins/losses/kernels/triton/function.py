"""Compute pointwise functions in a kernel, by a family and its numbers, see `KernelFunction`.

Both are compiled in, as one tuple `f`: (family, number, number, …).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Triton's interpreter has none of the hardware's functions.
HARDWARE: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def function_of(z, f: tl.constexpr):
    """Return f(z)."""
    value = z
    if f[0] == "gss":
        x = z - f[1]
        softplus = fast_log(1.0 + tl.exp(-tl.abs(x)))
        value = z + (f[2] - 1) * (tl.minimum(x, 0.0) - softplus)  # log σ(x), without overflow
    elif f[0] == "logistic":
        value = f[1] * tl.sigmoid((z + f[2]) * (1 / f[3])) + f[4]
    return value


@triton.jit
def times_slope(grad, z, f: tl.constexpr):
    """Return grad f'(z)."""
    value = grad
    if f[0] == "gss":
        value = grad * (f[2] - (f[2] - 1) * tl.sigmoid(z - f[1]))
    elif f[0] == "logistic":
        gate = tl.sigmoid((z + f[2]) * (1 / f[3]))
        value = grad * (f[1] / f[3]) * (gate * (1 - gate))
    return value


@triton.jit
def fast_log(x):
    """Return log x for x ≥ 1; in float32 by one instruction, with an error of 2^-22."""
    return libdevice.fast_logf(x) if HARDWARE and x.dtype == tl.float32 else tl.log(x)
