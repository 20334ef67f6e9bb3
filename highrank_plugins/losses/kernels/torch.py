"""Define what a set of kernels does for a fused loss: passes over a chunk of logits.

Suffixes of tensors are their shapes, see `heads.base`; N is a block of a chunk here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import cache_sized_blocks
from highrank_plugins.losses.plan import (
    LossPlan,
    MixtureBlock,
    Named,
    Scores,
    SoftmaxBlock,
    TreeBlock,
    places,
)

# indices of tokens of a block → their logits [n, K, M], in memory of their own
RecomputeLogits = Callable[[Tensor], Tensor]


class Kernels:
    """Make the elementwise passes over the chunks of one batch, in torch's operations.

    Other sets are subclasses; they repeat this mathematics. The arguments are as those of
    `FusedLoss`. The loss of token n is scale_n (α nll + ε_i Σ_x −log P_x + ζ Σ_k lse_k²), with α,
    ε_i and ζ of the plan.
    """

    # whether passes add the output bias, instead of the products
    adds_bias: ClassVar[bool] = False
    # whether rows of chunks are padded on every device, see `FusedLoss.buffer`
    pads_rows: ClassVar[bool] = False
    # whether `tree_backward` leaves the gradient of leaf j + 1 at j, and that of leaf 0 at the end
    rotates_leaves: ClassVar[bool] = True
    # whether trees take a `GateProduct` instead of gate logits
    computes_gates: bool = False

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, compute: torch.dtype) -> None:
        self.plan, self.sums, self.compute = plan, sums, compute
        self.place = tensors.get("place")  # of each class among the logits
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
        """Yield the ranges of rows that a pass works on."""
        return cache_sized_blocks(rows, floats_per_row, self.plan.features.device)

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        """Return the scores of log_softmax(f(z + bias)); logits z become their gradient.

        The gradient lacks the factor, unless `applies_factor`. A bias is one that products lack.
        """
        logits_NM, target_N, factor_N, weights, _ = block
        plan = self.plan
        if bias_M is not None:
            logits_NM.add_(bias_M)
        values_NM, pullback = self.vjp(logits_NM)
        correct_N = values_NM.argmax(-1) == target_N if plan.accuracy else None
        at_target_N, mean_N, top_N, log_sum_N = self.normalise(values_NM, target_N, plan.smooth)
        log_norm_N = top_N + log_sum_N
        smooth_sum_N = None
        if mean_N is not None:
            smooth_sum_N = plan.num_classes * (log_sum_N + (top_N - mean_N))
        entropy_N = entropy_of(values_NM) if plan.entropy else None
        if factor_N is not None:
            if weights.z:
                values_NM.mul_((weights.total + 2 * weights.z * log_norm_N).unsqueeze(-1))
            elif weights.total != 1:
                values_NM.mul_(weights.total)
            self.add_at_target(values_NM, target_N, -weights.target)
            if weights.smoothing:
                values_NM.sub_(weights.smoothing)
            self.write_gradient(values_NM, pullback, factor_N, logits_NM)
        square_norm_N = log_norm_N.square() if plan.z_loss else None
        nll_N = log_sum_N + (top_N - at_target_N)  # large numbers first: the difference is exact
        return Scores(nll_N, smooth_sum_N, correct_N, entropy_N, square_norm_N)

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        """Return the scores of lse_k [log π_k + log_softmax(f(z_k + bias))], and write gradients.

        With r the posterior of the components, the gradient of value x of component k is
        r_k (P_kx − 1[x = y]). Label smoothing has weights w_x = ε_i + α 1[x = y] on −log P_x: with
        u_x = w_x / P_x and c_k = Σ_x P_kx u_x it is π_k P_kx (c_k − u_x), and −π_k c_k for log π_k.
        The z-loss adds 2 ζ lse_k P_kx. `recompute_logits` (with the bias) serves what underflows.
        """
        logits_NKM, log_prior_NK, target_N, scale_N, factor_NK, grad_prior_NK, _ = block
        plan = self.plan
        # the search for underflow would synchronise with a GPU
        if plan.smooth and logits_NKM.device.type != "cpu":
            return log_domain_pass(self, block)
        values_NKM, pullback = self.vjp(logits_NKM)
        at_target_NK, _, top_NK, log_sum_NK = self.normalise(values_NKM, target_N)
        log_norm_NK = top_NK + log_sum_NK
        joint_NK = log_prior_NK + (at_target_NK - top_NK) - log_sum_NK
        log_likelihood_N = joint_NK.logsumexp(-1)
        mixture_NM = correct_N = entropy_N = smooth_sum_N = lost = None
        if plan.smooth or plan.accuracy or plan.entropy:
            mixture_NM = torch.bmm(log_prior_NK.exp().unsqueeze(1), values_NKM).squeeze(1)
            correct_N = mixture_NM.argmax(-1) == target_N if plan.accuracy else None
            entropy_N = entropy_of(mixture_NM) if plan.entropy else None
        if plan.smooth and mixture_NM is not None:
            lost = underflowing(mixture_NM)
            mixture_NM[lost] = 1.0
            smooth_sum_N = -mixture_NM.log().sum(-1)
        if scale_N is not None:
            scale_N1 = scale_N.unsqueeze(-1)
            probs_NKM = values_NKM.clone() if plan.z_loss else values_NKM
            if mixture_NM is None or not plan.smooth:
                write_posterior(joint_NK, log_likelihood_N, scale_N1, block)
                self.add_at_target(values_NKM, target_N, -1.0)
            else:
                ratio_NM = smoothing_weights(plan, mixture_NM, target_N).div_(mixture_NM)
                share_NK1 = torch.bmm(values_NKM, ratio_NM.unsqueeze(-1))
                torch.mul(log_prior_NK.exp(), scale_N1, out=factor_NK)
                torch.mul(factor_NK, share_NK1.squeeze(-1), out=grad_prior_NK).neg_()
                values_NKM.mul_(share_NK1 - ratio_NM.unsqueeze(1))
            if self.applies_factor:
                values_NKM.mul_(factor_NK.unsqueeze(-1))
            if plan.z_loss:
                weight_NK = 2 * plan.z_loss * scale_N1 * log_norm_NK
                values_NKM.addcmul_(probs_NKM, weight_NK.unsqueeze(-1))
            if lost is not None:
                values_NKM[lost] = 0.0
            copy_unless_same(pullback(values_NKM), logits_NKM)
        square_norm_N = log_norm_NK.square().sum(-1) if plan.z_loss else None
        scores = Scores(-log_likelihood_N, smooth_sum_N, correct_N, entropy_N, square_norm_N)
        if lost is not None:
            recompute_in_log_domain(self, lost, scores, block, recompute_logits)
        return scores

    def normalise(
        self, values: Tensor, target_N: Tensor, mean: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Turn values [n, ..., M] into their softmax in place.

        Returns the targets' values [n, ...], the mean if wanted, and two summands of the
        log-sum-exp: the largest value, and the logarithm of the sum relative to it. Their sum loses
        the second to rounding where the first is large.
        """
        at_target = values.gather(-1, places(target_N, values)).squeeze(-1)
        means = values.mean(-1) if mean else None
        top = values.amax(-1)
        torch.softmax(values, -1, out=values)
        # the largest probability is e^0 over the sum
        return at_target, means, top, -values.amax(-1).log()

    def add_at_target(self, values: Tensor, target_N: Tensor, summand: float) -> None:
        index = places(target_N, values)
        values.scatter_add_(-1, index, values.new_full(index.shape, summand))

    def log_softmax(self, values: Tensor) -> Tensor:
        return values.log_softmax(-1)

    def over_classes(self, sums: Tensor) -> Tensor:
        """Return the sums over all classes, given those over the classes that are here."""
        return sums

    def tree_forward(self, tree: TreeBlock, out_NS: Tensor) -> None:
        """Write Σ_j π_j leaf_j into `out`, π being the sigmoid tree over K − 1 gate logits.

        The tree is that of `heads.mixtape`, the reference: inner node i < K has gate i − 1 and the
        children 2i and 2i + 1, and its value is the lerp of theirs. Leaves and gates hold
        afterwards what `tree_backward` needs. Here a gate holds σ, and leaf p the difference of the
        children of the inner node whose place is p in order from left to right.
        """
        leaves, gates = tree.leaves_NKS.unbind(1), tree.gates_JNS.unbind()
        if not gates:
            out_NS.copy_(leaves[0])
        values, half, step = list(leaves), len(leaves) // 2, 1
        while half:  # the nodes of one level, from the leaves up
            for i in range(half):
                left, right = values[2 * i : 2 * i + 2]
                gate = gates[half - 1 + i].sigmoid_()
                # lerp, because right + σ (left − right) loses digits for a saturated gate
                values[i] = torch.lerp(right, left, gate, out=out_NS if half == 1 else None)
                torch.sub(left, right, out=leaves[(2 * i + 1) * step - 1])
            half, step = half // 2, 2 * step

    def tree_backward(self, tree: TreeBlock, grad_NS: Tensor) -> None:
        """Turn leaves and gates into their gradients, given the gradient of `out`.

        Here j holds the gradient of leaf j + 1, and the last place that of leaf 0. The gradient of
        a left child takes the place of its parent's; that of the root is the last place. The
        gradient of a right child takes the place of the difference.
        """
        leaves, gates = tree.leaves_NKS.unbind(1), tree.gates_JNS.unbind()
        if not gates:
            leaves[0].copy_(grad_NS)
        grads = {1: grad_NS}
        for node, gate in enumerate(gates, 1):
            level = node.bit_length()
            place = (2 * node + 1 - 2**level) * (len(leaves) >> level) - 1
            above, apart = grads[node], leaves[place]
            left = torch.mul(above, gate, out=leaves[-1] if node == 1 else None)
            apart.mul_(left)
            torch.addcmul(apart, apart, gate, value=-1, out=gate)  # g (left − right) σ (1 − σ)
            torch.sub(above, left, out=apart)
            grads[2 * node] = left if node == 1 else above.copy_(left)
            grads[2 * node + 1] = apart

    def add_bias_gradient(self, grad_NM: Tensor, factor_N: Tensor) -> None:
        """Add Σ_n grad_n, times the factor of rows unless it is applied, to that of the bias."""
        total = self.sums.get("bias")
        if total is None:
            return
        if self.applies_factor:
            total.add_(grad_NM.sum(0, dtype=total.dtype))
        else:
            total.addmv_(grad_NM.t(), factor_N)

    def weighed(self, log_probs: Tensor, target_N: Tensor, wanted: bool) -> tuple[Scores, Any]:
        """Return the scores of log P [n, M] and, if wanted, the weights [n, M] of −log P."""
        plan, place = self.plan, self.place
        if plan.soft is not None:
            in_order = log_probs if place is None else log_probs[:, place]
            scores, weight_NM = plan.soft.scores(plan, in_order, target_N)
            return scores, weight_NM if place is None else weight_NM[:, place.argsort()]
        weight_NM = smoothing_weights(plan, log_probs, target_N) if wanted else None
        return plan.scores_of(log_probs, target_N), weight_NM

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
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)


def write_posterior(
    joint_NK: Tensor, log_likelihood_N: Tensor, scale_N1: Tensor, block: MixtureBlock
) -> None:
    """Write the scaled posterior of the components, and the gradient of log π without smoothing."""
    # −∞ (no component explains the token) must not be subtracted
    shift_N = log_likelihood_N.masked_fill(log_likelihood_N == -torch.inf, 0)
    torch.mul((joint_NK - shift_N.unsqueeze(-1)).exp_(), scale_N1, out=block.factor_NK)
    torch.neg(block.factor_NK, out=block.grad_prior_NK)


def recompute_in_log_domain(
    kernels: Kernels,
    lost: Tensor,
    scores: Scores,
    block: MixtureBlock,
    recompute_logits: RecomputeLogits,
) -> None:
    """Write scores and gradients of the tokens `lost`, so far 0, as `log_domain_pass` does."""
    _, components, classes = block.logits_NKM.shape
    blocks = cache_sized_blocks(len(lost), components * classes, lost.device)
    for a, b in blocks if len(lost) else ():
        part = lost[a:b]
        own = block.tokens(part)._replace(logits_NKM=recompute_logits(part))
        found = log_domain_pass(kernels, own)
        for whole, recomputed in zip(scores, found, strict=True):
            if whole is not None and recomputed is not None:
                whole[part] = recomputed
        if block.scale_N is not None:
            block.logits_NKM[part] = own.logits_NKM
            block.factor_NK[part] = own.factor_NK
            block.grad_prior_NK[part] = own.grad_prior_NK


def log_domain_pass(kernels: Kernels, block: MixtureBlock) -> Scores:
    """Return scores and write gradients from logarithms, where probabilities would underflow."""
    logits_NKM, log_prior_NK, target_N, scale_N, factor_NK, grad_prior_NK, _ = block
    values_NKM, pullback = kernels.vjp(logits_NKM)
    log_parts_NKM = kernels.log_softmax(values_NKM)
    log_joint_NKM = log_prior_NK.unsqueeze(-1) + log_parts_NKM
    log_mixture_NM = log_joint_NKM.logsumexp(1)
    scores, weight_NM = kernels.weighed(log_mixture_NM, target_N, scale_N is not None)
    log_norm_NK = values_NKM.logsumexp(-1) if kernels.plan.z_loss else None
    if scale_N is not None:
        # −∞ (every component rules a class out) must not be subtracted
        shift_NM = log_mixture_NM.masked_fill(log_mixture_NM == -torch.inf, 0)
        posterior_NKM = log_joint_NKM.sub_(shift_NM.unsqueeze(1)).exp_()
        posterior_NKM.mul_(weight_NM.unsqueeze(1))
        share_NK = kernels.over_classes(posterior_NKM.sum(-1))
        factor_NK.copy_(scale_N.unsqueeze(-1).expand_as(factor_NK))
        torch.mul(factor_NK, share_NK, out=grad_prior_NK).neg_()
        if log_norm_NK is not None:
            share_NK = share_NK + 2 * kernels.plan.z_loss * log_norm_NK
        torch.mul(log_parts_NKM.exp_(), share_NK.unsqueeze(-1), out=values_NKM).sub_(posterior_NKM)
        kernels.write_gradient(values_NKM, pullback, factor_NK, logits_NKM)
    square_norm_N = None if log_norm_NK is None else log_norm_NK.square().sum(-1)
    return scores._replace(square_norm_N=square_norm_N)


def smoothing_weights(plan: LossPlan, like_NM: Tensor, target_N: Tensor) -> Tensor:
    """Return the weights w [N, M] of −log P_x: ε_i + α 1[x = y]."""
    index_N1 = target_N.unsqueeze(-1)
    weight_NM = torch.full_like(like_NM, plan.smoothing_weight)
    at_target_N1 = weight_NM.new_full(index_N1.shape, plan.target_weight)
    return weight_NM.scatter_add_(-1, index_N1, at_target_N1)


def underflowing(mixture_NM: Tensor) -> Tensor:
    """Return the numbers of tokens with a probability that is too small to divide by."""
    limits = torch.finfo(mixture_NM.dtype)
    return (mixture_NM.amin(-1) < limits.tiny / limits.eps).nonzero().squeeze(-1)


def entropy_of(probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(-1)
