"""Mixtape, with kernels."""

from __future__ import annotations

from torch import Tensor

from ..fused import FusedMixtape
from . import launch
from .passes import TritonPasses


class TritonMixtape(TritonPasses, FusedMixtape):
    """`FusedMixtape` with kernels: the tree is climbed in registers, and again for its gradients,
    so that leaves and gates stay as they are until these take their places."""

    def mix(self, leaves: Tensor, gates: Tensor, out: Tensor) -> None:
        launch.mix(leaves, gates, out, self.wide)

    def unmix(self, grad: Tensor, leaves: Tensor, gates: Tensor) -> None:
        launch.unmix(grad, leaves, gates, self.wide)

    def by_slot(self, contexts: Tensor) -> None:
        """Leaves' gradients are in their order."""

    def by_leaf(self, grads: Tensor) -> None:
        """Leaves' gradients are in their order."""
