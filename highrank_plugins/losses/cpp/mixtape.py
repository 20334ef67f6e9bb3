"""Mixtape, with compiled kernels."""

from __future__ import annotations

from typing import Any, ClassVar

from ..fused.kernel_passes import KernelTree
from . import launch
from .passes import CppPasses


class CppMixtape(CppPasses, KernelTree):
    """`FusedMixtape` with kernels: the nodes of the tree exist in cache only, and gates hold σ
    between the way up and the way down."""

    kernels: ClassVar[Any] = launch
