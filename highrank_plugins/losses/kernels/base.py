"""Define what a set of kernels does for a fused loss: passes over a chunk of logits.

Suffixes of tensors are their shapes, see `heads.base`; N is a block of a chunk here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.chunked_head import Named
from highrank_plugins.losses.chunking import chunk_ranges
from highrank_plugins.losses.kernels import sigmoid_tree
from highrank_plugins.losses.plan import ClassWeights, LossPlan, Scores

# indices of tokens of a block → their logits [n, K, M], in memory of their own
RecomputeLogits = Callable[[Tensor], Tensor]


class SoftmaxBlock(NamedTuple):
    """Hold a block of tokens with one softmax each, whose gradient is written in place.

    The gradient of a row, times f', is described by `ClassWeights`.
    """

    logits_NM: Tensor  # becomes its gradient
    target_N: Tensor
    factor_N: Tensor | None  # the tokens' scale; None: scores only, and the logits are lost
    weights: ClassWeights


class MixtureBlock(NamedTuple):
    """Hold a block of tokens of a Mixture of Softmaxes; gradients are written in place."""

    logits_NKM: Tensor  # becomes its gradient
    log_prior_NK: Tensor  # log π, normalised
    target_N: Tensor
    scale_N: Tensor | None  # factor of each token's loss; None: scores only
    factor_NK: Tensor  # becomes the factor that the gradient of the logits still lacks
    grad_prior_NK: Tensor  # becomes the gradient of log π

    def tokens(self, which: slice | Tensor) -> MixtureBlock:
        """Return some of the tokens: views for a slice, copies for indices."""
        parts: list[Any] = [None if t is None else t[which] for t in self]
        return MixtureBlock(*parts)


class GateProduct(NamedTuple):
    """Hold what a tree's gate logits are: inputs · weights, plus what is in their place."""

    inputs_JNC: Tensor
    weights_SC: Tensor
    adds: bool  # whether the gates' memory holds a summand; else it holds anything


class TreeBlock(NamedTuple):
    """Hold the leaves and gates of a block of Mixtape's tokens, which become their gradients."""

    leaves_NKS: Tensor
    gates_JNS: Tensor  # logits
    product: GateProduct | None  # the gate logits, if and only if `computes_gates`


class Kernels:
    """Make the elementwise passes over the chunks of one batch; each set is a subclass.

    The loss of token n is scale_n (α nll + ε_i Σ_x −log P_x + ζ Σ_k lse_k²), with α, ε_i and ζ of
    the plan.

    Args:
        plan: the batch; gives the smoothing, the pointwise function f, and which scores to find.
        sums: where gradients of `head.tensors()` are added, by name.
        tensors: what `head.tensors()` returns, detached.
        compute: dtype of matrix products.
    """

    # whether passes add the output bias, instead of the products
    adds_bias: ClassVar[bool] = False
    # whether rows of chunks are padded on every device, see `FusedLoss.buffer`
    pads_rows: ClassVar[bool] = False
    # whether trees take a `GateProduct` instead of gate logits
    computes_gates: bool = False

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, compute: torch.dtype) -> None:
        self.plan, self.sums, self.compute = plan, sums, compute
        self.wide = torch.float64 if compute == torch.float64 else torch.float32
        self.chunk_dtype = self.wide
        prefix = "pointwise."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        own_sums = {n.removeprefix(prefix): t for n, t in sums.items() if n.startswith(prefix)}
        self.vjp = plan.head.pointwise.prepare_vjp(own, own_sums, self.wide)
        # Whether gradients leave a pass with the factor of their row. It can wait until after the
        # matrix products, unless the pointwise function sums gradients of its own, gradients
        # without the factor underflow in float16, gradients are compared across rows, or the
        # z-loss, which has another factor, adds to them.
        own_factor = plan.filter_gradients or plan.z_loss > 0
        self.applies_factor = bool(own_sums) or compute == torch.float16 or own_factor

    @property
    def bytes_per_logit(self) -> int:
        """Return the bytes of a logit in a chunk, with its copy in the compute dtype, if any."""
        copy = 0 if self.chunk_dtype == self.compute else self.compute.itemsize
        return self.chunk_dtype.itemsize + copy

    def row_blocks(self, rows: int, floats_per_row: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows that a pass works on; by default all rows at once."""
        return chunk_ranges(0, rows, rows)

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        """Return the scores of log_softmax(f(z + bias)); logits z become their gradient.

        The gradient is divided by the factor, unless `applies_factor`.

        Args:
            bias_M: the output bias, if the product has not added it.
        """
        raise NotImplementedError

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        """Return the scores of lse_k [log π_k + log_softmax(f(z_k + bias))], and write gradients.

        Args:
            bias_M: the output bias, if the product has not added it.
            recompute_logits: for tokens whose probabilities underflow; includes the bias.
        """
        raise NotImplementedError

    def tree_forward(self, tree: TreeBlock, out_NS: Tensor) -> None:
        """Write Σ_j π_j leaf_j into `out`, π being the sigmoid tree over K − 1 gate logits.

        Leaves and gates hold afterwards what `tree_backward` needs.
        """
        sigmoid_tree.tree_forward(tree.leaves_NKS.unbind(1), tree.gates_JNS.unbind(), out_NS)

    def tree_backward(self, tree: TreeBlock, grad_NS: Tensor) -> None:
        """Turn leaves and gates into their gradients, given the gradient of `out`."""
        sigmoid_tree.tree_backward(grad_NS, tree.leaves_NKS.unbind(1), tree.gates_JNS.unbind())

    def leaf_order(self, components: int) -> list[int]:
        """Return which leaf's gradient each slot holds after `tree_backward`."""
        return sigmoid_tree.slots_of_leaves(components)

    def add_bias_gradient(self, grad_NM: Tensor, factor_N: Tensor | None) -> None:
        """Add Σ_n factor_n grad_n to the gradient of the bias, in the wide dtype."""
        total = self.sums.get("bias")
        if total is None:
            return
        if factor_N is None:
            total.add_(grad_NM.sum(0, dtype=total.dtype))
        else:
            total.addmv_(grad_NM.t(), factor_N)

    def write_gradient(
        self, grad: Tensor, pullback: Callable[[Tensor], Tensor], factor: Tensor, logits: Tensor
    ) -> None:
        """Write the gradient of the logits into them, given the gradient [..., M] of f."""
        if self.applies_factor:
            grad.mul_(factor.unsqueeze(-1))
        copy_unless_same(pullback(grad), logits)

    def finish(self) -> None:
        """Finish the sums after the last chunk."""


def copy_unless_same(source: Tensor, target: Tensor) -> None:
    """Copy `source` into `target`, unless they share their memory."""
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)


def entropy_of(probs: Tensor) -> Tensor:
    """Return −Σ_x P_x log P_x [...] of probabilities [..., M]."""
    return torch.special.entr(probs).sum(-1)
