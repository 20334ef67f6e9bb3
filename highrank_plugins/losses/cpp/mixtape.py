"""Mixtape, with compiled kernels."""

from __future__ import annotations

from ..fused.kernel_passes import KernelTree
from .passes import CppPasses


class CppMixtape(CppPasses, KernelTree):
    """`FusedMixtape` with kernels: the nodes of the tree exist in cache only, and gates hold σ
    between the way up and the way down."""
