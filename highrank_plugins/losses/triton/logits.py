"""Heads with one softmax over f(W h + b), with kernels."""

from __future__ import annotations

from highrank_plugins.losses.fused import FusedLogits
from highrank_plugins.losses.triton.passes import TritonPasses


class TritonLogits(TritonPasses, FusedLogits):
    """`FusedLogits` with kernels: the chunk is read twice and written once."""
