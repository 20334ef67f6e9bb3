"""Mixtape, with kernels: the tree is climbed in registers, and again for its gradients."""

from __future__ import annotations

from typing import Any, ClassVar

from highrank_plugins.losses.fused.kernel_passes import KernelTree
from highrank_plugins.losses.triton import launch
from highrank_plugins.losses.triton.passes import TritonPasses


class TritonMixtape(TritonPasses, KernelTree):
    """`FusedMixtape` with kernels. Leaves and gates stay as they are until their gradients take
    their places."""

    kernels: ClassVar[Any] = launch
