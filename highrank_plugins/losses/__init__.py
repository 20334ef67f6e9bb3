"""Compute exact negative log-likelihoods of output layers, by several implementations.

All give the same numbers. `reference` defines them: all log-probabilities, then a gather. `chunked`
holds one chunk of tokens at a time. `fused` also writes its gradients out; `cpp` and `triton` are
`fused` with other kernels. `nll` chooses; each implementation is a function of a `plan.LossPlan`.
"""

from __future__ import annotations

from highrank_plugins.losses.nll import (
    IMPLEMENTATIONS,
    check_implementation,
    compute_nll,
    implementation_here,
)
from highrank_plugins.losses.plan import LossOptions, LossOutput, LossPlan
from highrank_plugins.losses.weighted import Target

__all__ = [
    "IMPLEMENTATIONS",
    "LossOptions",
    "LossOutput",
    "LossPlan",
    "Target",
    "check_implementation",
    "compute_nll",
    "implementation_here",
]
