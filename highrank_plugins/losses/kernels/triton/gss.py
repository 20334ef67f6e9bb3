"""The pointwise functions that a kernel computes itself: f(z) = z + (k − 1) log σ(z − c).

That is GSS; c = 0, k = 2 is SigSoftmax, k = 1 the identity. c and k are compiled in.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gss(z, c: tl.constexpr, k: tl.constexpr):
    """f(z)."""
    value = z
    if k != 1:
        value = z + (k - 1) * log_sigmoid(z - c)
    return value


@triton.jit
def times_gss_slope(grad, z, c: tl.constexpr, k: tl.constexpr):
    """grad f'(z), with f'(z) = k − (k − 1) σ(z − c)."""
    value = grad
    if k != 1:
        value = grad * (k - (k - 1) * tl.exp(log_sigmoid(z - c)))
    return value


@triton.jit
def log_sigmoid(x):
    """log σ(x), without overflow."""
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))
