"""What the losses with Triton kernels share."""

from __future__ import annotations

from torch import Tensor

from highrank_plugins.losses.fused.base import Scores
from highrank_plugins.losses.fused.kernel_passes import KernelPasses
from highrank_plugins.losses.fused.values import Values
from highrank_plugins.losses.triton import launch


class TritonPasses(KernelPasses):
    """Mixin before a fused loss: its passes are Triton kernels."""

    narrow_chunks = True

    def softmax_kernel(
        self, values: Values, target: Tensor, factor: Tensor | None, scores: Scores
    ) -> None:
        launch.softmax(
            values.tensor,
            target,
            values.bent_line,
            scores.nll,
            bias=values.bias,
            factor=factor,
            weights=self.weights(),
            smooth_sum=scores.smooth_sum,
            hits=scores.hits,
        )
