"""Mixtape, with compiled kernels."""

from __future__ import annotations

from typing import Any, ClassVar

from highrank_plugins.losses.cpp import launch
from highrank_plugins.losses.cpp.passes import CppPasses
from highrank_plugins.losses.fused.kernel_passes import KernelTree


class CppMixtape(CppPasses, KernelTree):
    """`FusedMixtape` with kernels: the nodes of the tree exist in cache only, and gates hold σ
    between the way up and the way down."""

    kernels: ClassVar[Any] = launch
