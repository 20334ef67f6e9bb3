"""Compute Mixtape's loss: gates of frequent classes, one mixed context for others, one softmax."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import chunk_memory, chunk_ranges
from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.kernels.torch import (
    GateProduct,
    SoftmaxBlock,
    TreeBlock,
    copy_unless_same,
)
from highrank_plugins.losses.plan import Scores, concatenate

# Blocks in which a chunk has its leaves and gates, at most. On a GPU the chunk then has several
# times as many tokens, and so the rare classes' product and those of `token_inputs` read and write
# their float32 sums less often. The frequent classes' product has K rows for each token anyway.
LEAF_BLOCKS = {"cpu": 1, "cuda": 4}


class FusedMixtape(FusedLoss):
    """Compute log_softmax(f(z)): z_x = Σ_k π_xk h_k·w_x + b_x if x < S, else m·w_x + b_x.

    `local` holds the contexts h [N, K, D], their mixture m [N, D] for the rare classes, and, where
    there are gates, the hidden units t [N, J, G] and the shared gate logits s [N, J]. The gate
    logits t_k·v_x + s_k + b_xk of all k are one product, [t_k, s_k, e_k]·[v_x, 1, b_x], whose
    gradient then holds the sums over classes and tokens as well; e_k is a unit vector. Everything
    of size [N, S] is changed in place.
    """

    reads: ClassVar[tuple[str, ...]] = ("weight", "bias", "gate_embed", "gate_bias")
    overwrites: ClassVar[tuple[str, ...]] = ("weight", "gate_embed", "gate_bias")
    holds_components = True

    def prepare(self, tensors: dict[str, Tensor]) -> None:
        common = len(tensors.get("gate_embed", ()))
        split = [common, self.plan.head.num_classes - common]
        self.frequent_SD, self.rare_RD = self.weight.split(split)
        if "weight" in self.sums:
            frequent, rare = self.sums["weight"].split(split)
            self.sums = {**self.sums, "frequent": frequent, "rare": rare}
        self.gates = len(tensors.get("gate_shared.weight", ())) if common else 0
        if self.gates:
            self.gate_dim = tensors["gate_embed"].size(1)
            self.has_gate_bias = "gate_bias" in tensors
            self.gate_weights_SC = self._gate_weights(tensors)
            self.gate_sums_SC = torch.empty_like(self.gate_weights_SC, dtype=self.kernels.wide)
            self.sums = {**self.sums, "gates": self.gate_sums_SC}

    def _gate_weights(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return [v_x, 1, b_x1 … b_xJ] of frequent classes [S, C], without b if it has none."""
        embed = tensors["gate_embed"].to(self.compute)
        columns = [embed, embed.new_ones(len(embed), 1)]
        if self.has_gate_bias:
            columns.append(tensors["gate_bias"].to(self.compute))
        return self._joined_columns(columns)

    def _joined_columns(self, columns: list[Tensor]) -> Tensor:
        """Return columns [..., c] side by side, as an operand of the gates' products.

        On a GPU zeros follow, up to a multiple of 16 bytes.
        """
        width = sum(column.size(-1) for column in columns)
        padding = 0
        if columns[0].device.type != "cpu" or self.kernels.pads_rows:
            padding = -width % (16 // self.compute.itemsize)
        shape = (*columns[0].shape[:-1], padding)
        return torch.cat([*columns, columns[0].new_zeros(shape)] if padding else columns, -1)

    @classmethod
    def floats_per_token(cls, head: Any) -> int:
        blocks = LEAF_BLOCKS.get(head.weight.device.type, LEAF_BLOCKS["cuda"])
        return head.num_classes + -(-cls._floats_of_leaves(head) // blocks)

    @staticmethod
    def _floats_of_leaves(head: Any) -> int:
        """Return how many numbers leaves and gates have per token."""
        return (2 * head.components - 1) * head.frequent

    def _leaf_tokens(self, tokens: int) -> int:
        """Return how many tokens of a chunk may have leaves and gates beside all its logits."""
        head = self.plan.head
        shape = (self.weight.size(0), self.weight.size(1))
        memory = chunk_memory(self.plan.features, self.plan.memory, shape)
        floats = memory // self.kernels.bytes_per_logit
        each = self.floats_per_token(head) - head.num_classes
        least = tokens * each // max(1, self._floats_of_leaves(head))
        left = floats - tokens * head.num_classes
        return max(1, least, left // max(1, self._floats_of_leaves(head)))

    def chunk(
        self,
        local: dict[str, Tensor],
        target_N: Tensor,
        scale_N: Tensor | None,
        random_state: Any,
        out: dict[str, Tensor],
    ) -> Scores:
        contexts_NKD = local["contexts"].to(self.compute)
        mixed_ND = local["mixed"].to(self.compute)
        hidden_JNC = self._gate_inputs(local) if self.gates else None
        tokens, common = len(contexts_NKD), len(self.frequent_SD)
        logits_NM = self.buffer("logits", tokens, self.plan.head.num_classes)
        rare_NR = logits_NM[:, common:]
        self.product(mixed_ND, self.rare_RD, rare_NR)
        grad_NKD = out.get("contexts")
        if grad_NKD is not None and grad_NKD.dtype != self.compute:
            grad_NKD = torch.empty_like(grad_NKD, dtype=self.compute)
        found = [
            self._block(
                logits_NM[a:b],
                contexts_NKD[a:b],
                None if grad_NKD is None else grad_NKD[a:b],
                None if hidden_JNC is None else hidden_JNC[:, a:b],
                target_N[a:b],
                None if scale_N is None else scale_N[a:b],
                partial(random_state.fill_with_noise, first=a),
                {name: out[name][a:b] for name in out.keys() & {"hidden", "shared"}},
            )
            for a, b in chunk_ranges(0, tokens, self._leaf_tokens(tokens))
        ]
        scores = Scores(*concatenate(found))
        if scale_N is None or grad_NKD is None:
            return scores
        factor_N = None if self.kernels.applies_factor else scale_N
        self.kernels.add_bias_gradient(logits_NM, factor_N)
        self.backward_products("rare", rare_NR, mixed_ND, self.rare_RD, factor_N, out["mixed"])
        copy_unless_same(grad_NKD, out["contexts"])
        return scores

    def _block(
        self,
        logits_NM: Tensor,
        contexts_NKD: Tensor,
        grad_NKD: Tensor | None,
        hidden_JNC: Tensor | None,
        target_N: Tensor,
        scale_N: Tensor | None,
        fill_with_noise: Callable[[Tensor], bool],
        out: dict[str, Tensor],
    ) -> Scores:
        """Return scores and gradients of gates of tokens whose rare logits are there.

        Those of contexts are written into `grad_NKD`.
        """
        tokens, components, _ = contexts_NKD.shape
        common = len(self.frequent_SD)
        leaves_NKS = self.buffer("leaves", tokens, components, common)
        gates_JNS = self.buffer("gates", self.gates, tokens, common)
        self.product(contexts_NKD.flatten(0, 1), self.frequent_SD, leaves_NKS.flatten(0, 1))
        # the product adds to the noise
        noisy = self.gates > 0 and fill_with_noise(gates_JNS)
        if hidden_JNC is not None and not self.kernels.computes_gates:
            rows = hidden_JNC.flatten(0, 1)
            self.product(rows, self.gate_weights_SC, gates_JNS.flatten(0, 1), adds=noisy)

        def passes(a: int, b: int) -> Scores:
            part = logits_NM[a:b]
            factor = None if scale_N is None else scale_N[a:b]
            product = None
            if hidden_JNC is not None and self.kernels.computes_gates:
                product = GateProduct(hidden_JNC[:, a:b], self.gate_weights_SC, noisy)
            tree = TreeBlock(leaves_NKS[a:b], gates_JNS[:, a:b], product)
            if common:
                self.kernels.tree_forward(tree, part[:, :common])
            rows = SoftmaxBlock(part, target_N[a:b], factor, self.plan.class_weights)
            scores = self.kernels.softmax_pass(rows, self.bias)
            if factor is not None and common:
                self.kernels.tree_backward(tree, part[:, :common])
            return scores

        width = self.plan.head.num_classes + self._floats_of_leaves(self.plan.head)
        blocks = self.kernels.row_blocks(tokens, width)
        scores = Scores(*concatenate(passes(a, b) for a, b in blocks))
        if scale_N is None or grad_NKD is None:
            return scores
        factor_N = None if self.kernels.applies_factor else scale_N
        self._leaf_products(leaves_NKS, contexts_NKD, factor_N, grad_NKD)
        if hidden_JNC is not None:
            self._gate_products(gates_JNS, hidden_JNC, factor_N, out)
        elif "hidden" in out:
            out["hidden"].zero_(), out["shared"].zero_()
        return scores

    def _leaf_products(
        self, leaves_NKS: Tensor, contexts_NKD: Tensor, factor_N: Tensor | None, out_NKD: Tensor
    ) -> None:
        grad = leaves_NKS.flatten(0, 1)
        factor = None if factor_N is None else factor_N.repeat_interleave(contexts_NKD.size(1))
        order = self.kernels.leaf_order(contexts_NKD.size(1))
        rows = in_order(contexts_NKD, order).flatten(0, 1)
        in_place = order == sorted(order)
        found = out_NKD if in_place else torch.empty_like(contexts_NKD)
        self.backward_products(
            "frequent", grad, rows, self.frequent_SD, factor, found.flatten(0, 1)
        )
        if not in_place:
            slots = found.unbind(1)
            torch.stack([slots[order.index(k)] for k in range(len(order))], 1, out=out_NKD)

    def _gate_inputs(self, local: dict[str, Tensor]) -> Tensor:
        """Return [t_k, s_k, e_k] [J, N, C], the unit vector e_k only where there are biases."""
        hidden_JNG = local["hidden"].to(self.compute).transpose(0, 1)
        columns = [hidden_JNG, local["shared"].to(self.compute).t().unsqueeze(-1)]
        if self.has_gate_bias:
            gates, tokens, _ = hidden_JNG.shape
            unit_JJ = torch.eye(gates, dtype=self.compute, device=hidden_JNG.device)
            columns.append(unit_JJ.unsqueeze(1).expand(-1, tokens, -1))
        return self._joined_columns(columns)

    def _gate_products(
        self,
        gates_JNS: Tensor,
        hidden_JNC: Tensor,
        factor_N: Tensor | None,
        out: dict[str, Tensor],
    ) -> None:
        grad, rows = gates_JNS.flatten(0, 1), hidden_JNC.flatten(0, 1)
        factor = None if factor_N is None else factor_N.repeat(self.gates)
        found_JNC = torch.empty_like(hidden_JNC)
        found = found_JNC.flatten(0, 1)
        self.backward_products(
            "gates", grad, rows, self.gate_weights_SC, factor, found, filtered=False
        )
        grad_NJC = found_JNC.transpose(0, 1)
        size = self.gate_dim
        out["hidden"].copy_(grad_NJC[..., :size])
        out["shared"].copy_(grad_NJC[..., size])

    def finish(self) -> None:
        super().finish()
        if not self.gates:
            return
        size = self.gate_dim
        if "gate_embed" in self.sums:
            self.sums["gate_embed"].copy_(self.gate_sums_SC[:, :size])
        if "gate_bias" in self.sums:
            biases = slice(size + 1, size + 1 + self.gates)
            self.sums["gate_bias"].copy_(self.gate_sums_SC[:, biases])


def in_order(x_NKD: Tensor, order: list[int]) -> Tensor:
    """Return x with x[:, order[j]] at j; it is x itself or a copy."""
    if order == sorted(order):
        return x_NKD
    # indexing with a list would synchronise with a GPU
    return torch.stack([x_NKD[:, source] for source in order], 1)
