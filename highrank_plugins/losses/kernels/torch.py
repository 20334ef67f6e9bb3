"""Make the passes by torch's operations, in place: the mathematics that all kernels repeat.

Suffixes of tensors are their shapes, see `heads.base`; N is a block of a chunk here.
"""

from __future__ import annotations

from torch import Tensor

from highrank_plugins.losses.kernels import sigmoid_tree
from highrank_plugins.losses.kernels.base import SoftmaxBlock
from highrank_plugins.losses.kernels.torch_mixture import (
    TorchMixture,
    entropy_of,
    softmax_in_place,
    write_gradient,
)
from highrank_plugins.losses.plan import Scores


class TorchKernels(TorchMixture):
    """Make the passes by torch's operations, on any device."""

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        logits_NM, target_N, factor_N, weights = block
        plan = self.plan
        index_N1 = target_N.unsqueeze(-1)
        if bias_M is not None:
            logits_NM.add_(bias_M)
        values_NM, pullback = self.vjp(logits_NM)
        correct_N = values_NM.argmax(-1) == target_N if plan.accuracy else None
        at_target_N = values_NM.gather(-1, index_N1).squeeze(-1)
        mean_N = values_NM.mean(-1) if plan.smooth else None
        log_norm_N = softmax_in_place(values_NM)
        smooth_sum_N = None if mean_N is None else values_NM.size(-1) * (log_norm_N - mean_N)
        entropy_N = entropy_of(values_NM) if plan.entropy else None
        if factor_N is not None:
            if weights.z:
                values_NM.mul_((weights.total + 2 * weights.z * log_norm_N).unsqueeze(-1))
            elif weights.total != 1:
                values_NM.mul_(weights.total)
            at_index = values_NM.new_full(index_N1.shape, -weights.target)
            values_NM.scatter_add_(-1, index_N1, at_index)
            if weights.smoothing:
                values_NM.sub_(weights.smoothing)
            write_gradient(self, values_NM, pullback, factor_N, logits_NM)
        square_norm_N = log_norm_N.square() if plan.z_loss else None
        nll_N = log_norm_N - at_target_N
        return Scores(nll_N, smooth_sum_N, correct_N, entropy_N, square_norm_N)

    def tree_forward(self, leaves_NKS: Tensor, gates_JNS: Tensor, out_NS: Tensor) -> None:
        sigmoid_tree.tree_forward(leaves_NKS.unbind(1), gates_JNS.unbind(), out_NS)

    def tree_backward(self, grad_NS: Tensor, leaves_NKS: Tensor, gates_JNS: Tensor) -> None:
        sigmoid_tree.tree_backward(grad_NS, leaves_NKS.unbind(1), gates_JNS.unbind())

    def leaf_order(self, components: int) -> list[int]:
        return sigmoid_tree.slots_of_leaves(components)
