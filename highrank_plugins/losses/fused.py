"""Compute fused losses: of one softmax over f(W h + b), and of a Mixture of Softmaxes.

A fused loss has its gradients written out. A chunk is its matrix products and one elementwise pass,
in place; no graph is kept over anything of the size of the vocabulary. `mixtape` has another.

Suffixes of tensors are their shapes, see `heads.base`; N is a chunk here.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.losses.autograd import GradientSum
from highrank_plugins.losses.chunking import join_chunks, tokens_within
from highrank_plugins.losses.kernels.torch import Kernels, copy_unless_same
from highrank_plugins.losses.plan import (
    AnyHead,
    LossPlan,
    MixtureBlock,
    Named,
    Scores,
    SoftmaxBlock,
)

# Rows of chunks on a GPU start at multiples of this many numbers; Triton knows of no others.
ROW_MULTIPLE = 16
# bytes of the passes over the blocks of a split layer, which its limit of memory includes
BLOCKS_OF_SPLIT = 32 * 2**20


class LossChunk(NamedTuple):
    """Hold what a loss reads of N tokens, and memory for the gradients of that."""

    given: Named  # what `token_inputs` returned, each [N, ...]
    target_N: Tensor  # int64, in range
    scale_N: Tensor | None  # factor of each token's loss, 0 where ignored; None: scores only
    grads: Named  # memory for the gradients of `given`; empty without `scale_N`
    start: int  # number of the first token in the batch

    def rows(self, a: int, b: int) -> LossChunk:
        if b - a == len(self.target_N):
            return self
        scale_N = None if self.scale_N is None else self.scale_N[a:b]
        given, grads = ({n: t[a:b] for n, t in named.items()} for named in (self.given, self.grads))
        return LossChunk(given, self.target_N[a:b], scale_N, grads, self.start + a)


class FusedLoss:
    """Compute scores of chunks of tokens, and gradients into `sums`.

    `sums` is memory, at least float32, for the gradients of those `tensors` that are wanted and
    that the loss itself reads. It is written whole, except that of the bias and of pointwise
    functions: this holds zeros, to which gradients are added. Products have the dtype `compute`.
    """

    # first words of the names of the tensors that are read here, and not in `head.token_inputs`
    reads: ClassVar[tuple[str, ...]] = ("weight", "bias", "pointwise")
    # whether a block may have several chunks
    joins_chunks: ClassVar[bool] = True
    # whether a thread of compiled kernels holds all components of a class
    holds_components: ClassVar[bool] = False
    # whether it also applies f to each of them, and not only to their mixture
    applies_function_to_components: ClassVar[bool] = False

    def __init__(
        self, plan: LossPlan, tensors: Named, sums: Named, kernels: type[Kernels],
        compute: torch.dtype,
    ) -> None:  # fmt: skip
        self.plan, self.sums, self.compute = plan, sums, compute
        self.kernels = kernels(plan, tensors, sums, compute)
        self.weight = tensors["weight"].to(self.compute)
        self.weight_sum = GradientSum(sums["weight"]) if "weight" in sums else None
        self._buffers: dict[str, Tensor] = {}
        bias = tensors.get("bias")
        self.bias = None if bias is None else self.buffer("bias", len(bias)).copy_(bias)
        self.bias_of_pass = self.bias if self.kernels.adds_bias else None
        self.bias_of_product = None if self.kernels.adds_bias else self.bias
        self.prepare(tensors)

    def prepare(self, tensors: Named) -> None:
        """Compute what all chunks of a batch share."""

    @classmethod
    def floats_per_token(cls, head: AnyHead) -> int:
        """Return how many numbers a chunk of `head` holds per token."""
        raise NotImplementedError

    def chunk_tokens(self) -> int:
        plan, width = self.plan, self.kernels.bytes_per_logit
        floats, rows, memory = self.floats_per_token(plan.head), plan.head.num_classes, plan.memory
        if plan.split is not None:
            floats, rows = plan.split.floats, plan.split.rows
        most = plan.features.size(0) * rows // max(1, floats)
        matrix = (rows, self.weight.size(1))
        tokens = plan.most or tokens_within(plan.features, floats, memory, matrix, most, width)
        if plan.split is not None and memory is not None:
            tokens = max(1, tokens * max(memory // 2, memory - BLOCKS_OF_SPLIT) // memory)
        return tokens

    def token_inputs(
        self, features: Tensor, target: Tensor, tensors: Named, random_state: Any
    ) -> Named:
        """Return what a chunk needs of each token, computed through autograd."""
        return self.plan.head.token_inputs(features, tensors, random_state)

    def chunk(self, chunk: LossChunk) -> Scores:
        """Return the scores of N tokens, and write their gradients."""
        raise NotImplementedError

    def finish(self) -> None:
        """Add the remaining terms to `sums`; called once, after the last chunk."""
        self.kernels.finish()

    # -- helpers -----------------------------------------------------------------------------

    def buffer(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return memory of this shape, the same for every chunk; its content is arbitrary.

        Rows are contiguous. On a GPU they start at multiples of 16 numbers: products and kernels
        then load 16 bytes at once. The dtype is by default that of chunks.
        """
        dtype, device = dtype or self.kernels.chunk_dtype, self.plan.features.device
        *outer, width = shape
        stride = width
        if device.type != "cpu" or self.kernels.pads_rows:
            stride = -(-width // ROW_MULTIPLE) * ROW_MULTIPLE
        size = math.prod(outer) * stride
        kept = self._buffers.get(name)
        if kept is None or kept.numel() < size:
            # oneDNN's products in bfloat16 read the padding on CPUs with AMX: it must not be NaN
            is_zeroed = device.type == "cpu" and self.kernels.pads_rows
            allocate = torch.zeros if is_zeroed else torch.empty
            kept = self._buffers[name] = allocate(size, dtype=dtype, device=device)
        return kept[:size].view(*outer, stride)[..., :width]

    def product(
        self, rows: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None = None,
        adds: bool = False,
    ) -> None:  # fmt: skip
        """Write rows @ weight^T (+ bias) into `out`, or add the product to what `out` holds."""
        if rows.dtype != out.dtype:
            found = torch.mm(rows, weight.t(), out=self._narrow(out))
            (out.add_ if adds else out.copy_)(found)
            if bias is not None:
                out.add_(bias)
        elif adds:
            torch.addmm(out, rows, weight.t(), out=out)
        elif bias is None:
            torch.mm(rows, weight.t(), out=out)
        else:
            torch.addmm(bias, rows, weight.t(), out=out)

    def _narrow(self, like: Tensor) -> Tensor:
        return self.buffer("narrow", *like.shape, dtype=self.compute)

    def backward_products(
        self, total: GradientSum | None, grad: Tensor, rows: Tensor, weight: Tensor,
        factor: Tensor, out: Tensor, filtered: bool = True,
    ) -> None:  # fmt: skip
        """Add grad^T @ (factor rows) to `total`, and write factor (grad @ weight) into `out`.

        `rows` and `weight` are in the compute dtype. The factor is 1 if the passes apply it.
        Classes that the filter leaves out of `grad` [n, M] take part in neither product.
        """
        if grad.dtype != self.compute:
            grad = self._narrow(grad).copy_(grad)
        factor_n1 = None if self.kernels.applies_factor else factor.unsqueeze(-1)
        scaled = rows if factor_n1 is None else (rows * factor_n1).to(rows.dtype)
        kept = kept_columns(grad) if filtered and self.plan.filter_gradients else None
        if kept is not None and len(kept) < grad.size(1):
            grad, weight = grad[:, kept], weight[kept]
            if total is not None:
                total.add_product(grad, scaled, kept)
        elif total is not None:
            total.add_product(grad, scaled)
        found = torch.mm(grad, weight, out=out if out.dtype == self.compute else None)
        copy_unless_same(found if factor_n1 is None else found.mul_(factor_n1), out)


def kept_columns(grad: Tensor) -> Tensor:
    """Return the classes whose gradient in `grad` [n, M] matters in its dtype: int64 indices.

    A class is left out if its entries are at most ε times the largest entry g of the chunk. Here ε
    is the resolution of the dtype (2^-23 for float32, 2^-7 for bfloat16): added to g, these entries
    would be rounded away. So the gradient of a row of the vocabulary matrix is off by at most
    ε g Σ_n |h_n|, the gradient of a context by at most ε g Σ_x |w_x|. If an entry is infinite or
    NaN, all classes are kept, so that the error stays visible.
    """
    if grad.numel() == 0:
        return torch.arange(grad.size(1), device=grad.device)
    largest = grad.abs().amax(0)
    top = largest.max()
    matters = (largest > torch.finfo(grad.dtype).eps * top) | ~top.isfinite()
    return matters.nonzero().squeeze(-1)


class FusedLogits(FusedLoss):
    """Compute log_softmax(f(W h + b)); `given["contexts"]` is h [N, D].

    Three matrix products and one pass. What is constant over classes (the token's factor) or over
    tokens (the smoothing's −ε_i) is applied to the narrow sides of the products.
    """

    def prepare(self, tensors: Named) -> None:
        plan, kernels = self.plan, self.kernels
        self.class_weights = plan.class_weights
        identity = plan.head.pointwise.is_identity
        # whether the −ε_i in the gradient of every logit is left to the matrix products
        self.folds_smoothing = plan.smooth and identity and not kernels.applies_factor
        if self.folds_smoothing:
            self.class_weights = self.class_weights._replace(smoothing=0.0)
            self.weight_sum_D = self.weight.sum(0, dtype=kernels.wide)
            self.context_sum_D = torch.zeros_like(self.weight_sum_D)
            self.scale_sum = self.weight_sum_D.new_zeros(())

    @classmethod
    def floats_per_token(cls, head: AnyHead) -> int:
        return head.num_classes

    def chunk(self, chunk: LossChunk) -> Scores:
        contexts_ND, scale_N = chunk.given["contexts"].to(self.compute), chunk.scale_N
        logits_NM = self.buffer("logits", contexts_ND.size(0), self.weight.size(0))
        self.product(contexts_ND, self.weight, logits_NM, self.bias_of_product)
        block = SoftmaxBlock(logits_NM, chunk.target_N, scale_N, self.class_weights)
        passes = (
            self.kernels.softmax_pass(block.rows(a, b), self.bias_of_pass)
            for a, b in self.kernels.row_blocks(*logits_NM.shape)
        )
        scores = Scores(*join_chunks(len(logits_NM), passes))
        if scale_N is None:
            return scores
        grad_ND = chunk.grads["contexts"]
        self.kernels.add_bias_gradient(logits_NM, scale_N)
        self.backward_products(
            self.weight_sum, logits_NM, contexts_ND, self.weight, scale_N, grad_ND
        )
        if self.folds_smoothing:
            share_N = scale_N * self.plan.smoothing_weight
            constant_ND = torch.outer(share_N, self.weight_sum_D)
            grad_ND.copy_((grad_ND - constant_ND).to(self.compute))
            self.context_sum_D.add_(share_N @ contexts_ND.to(share_N.dtype))
            self.scale_sum.add_(share_N.sum())
        return scores

    def finish(self) -> None:
        super().finish()
        if self.folds_smoothing:
            for name, constant in (("weight", self.context_sum_D), ("bias", self.scale_sum)):
                if name in self.sums:
                    self.sums[name].sub_(constant)


class FusedMixture(FusedLoss):
    """Compute lse_k [log π_k + log_softmax(f(W h_k + b))].

    `given["contexts"]` is h [N, K, D], `given["log_prior"]` log π [N, K], normalised. Gradients:
    see `Kernels.mixture_pass`. The posterior of the components, constant along a row of
    logits, is applied in the products where the kernels have not applied it.
    """

    holds_components = True
    applies_function_to_components = True

    @classmethod
    def floats_per_token(cls, head: AnyHead) -> int:
        return head.components * head.num_classes

    def chunk(self, chunk: LossChunk) -> Scores:
        contexts_NKD = chunk.given["contexts"].to(self.compute)
        log_prior_NK = chunk.given["log_prior"].to(self.kernels.wide).contiguous()
        rows = contexts_NKD.flatten(0, 1)
        grad = self.buffer("logits", len(rows), self.weight.size(0))
        self.product(rows, self.weight, grad, self.bias_of_product)
        block = MixtureBlock(
            logits_NKM=grad.unflatten(0, log_prior_NK.shape),
            log_prior_NK=log_prior_NK,
            target_N=chunk.target_N,
            scale_N=chunk.scale_N,
            factor_NK=torch.empty_like(log_prior_NK),
            grad_prior_NK=torch.empty_like(log_prior_NK),
        )

        def scores_of(a: int, b: int) -> Scores:
            part, logits_of = block.tokens(slice(a, b)), partial(self._logits, contexts_NKD[a:b])
            return self.kernels.mixture_pass(part, self.bias_of_pass, logits_of)

        floats = self.floats_per_token(self.plan.head)
        passes = (scores_of(a, b) for a, b in self.kernels.row_blocks(len(contexts_NKD), floats))
        scores = Scores(*join_chunks(len(contexts_NKD), passes))
        if chunk.scale_N is None:
            return scores
        factor = block.factor_NK.view(-1)
        self.kernels.add_bias_gradient(grad, factor)
        out = chunk.grads["contexts"].view(rows.shape)
        self.backward_products(self.weight_sum, grad, rows, self.weight, factor, out)
        chunk.grads["log_prior"].copy_(block.grad_prior_NK)
        return scores

    def _logits(self, contexts_NKD: Tensor, which: Tensor) -> Tensor:
        """Return the logits [n, K, M] of some tokens, in memory of their own."""
        rows = contexts_NKD[which].flatten(0, 1)
        dtype = self.kernels.chunk_dtype
        logits = torch.empty(len(rows), len(self.weight), dtype=dtype, device=rows.device)
        self.product(rows, self.weight, logits, self.bias)
        return logits.unflatten(0, (-1, contexts_NKD.size(1)))
