"""Heads with one softmax over f(W h + b), with compiled kernels."""

from __future__ import annotations

from highrank_plugins.losses.cpp.passes import CppPasses
from highrank_plugins.losses.fused import FusedLogits


class CppLogits(CppPasses, FusedLogits):
    """`FusedLogits` with a kernel: a row of the chunk is read once, and stays in cache."""
