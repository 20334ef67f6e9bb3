"""Heads with one softmax over f(W h + b), with kernels."""

from __future__ import annotations

from ..fused import FusedLogits
from .passes import TritonPasses


class TritonLogits(TritonPasses, FusedLogits):
    """`FusedLogits` with kernels: the chunk is read twice and written once."""
