"""Compute Mixtape's loss: gates of frequent classes, one mixed context for others, one softmax."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.fused.base import FusedLoss
from highrank_plugins.losses.fused.products import (
    add_product_to,
    aligned,
    rows_times,
    rows_times_,
)
from highrank_plugins.losses.kernels.base import SoftmaxBlock
from highrank_plugins.losses.plan import Scores, concatenate


class FusedMixtape(FusedLoss):
    """Compute log_softmax(f(z)): z_x = Σ_k π_xk h_k·w_x + b_x if x < S, else m·w_x + b_x.

    `local` holds the contexts h [N, K, D], their mixture m [N, D] for the rare classes, and, where
    there are gates, the hidden units t [N, J, G] and the shared gate logits s [N, J]. The gate
    logits t_k·v_x + s_k + b_xk are one product: [t_k, s_k, 1]·[v_x, 1, b_xk], whose gradient then
    holds the sums over classes and tokens as well. Everything of size [N, S] is changed in place.
    """

    reads: ClassVar[tuple[str, ...]] = ("weight", "bias", "gate_embed", "gate_bias")
    overwrites: ClassVar[tuple[str, ...]] = ("weight",)

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
            self.gate_weights_JSC = self._gate_weights(tensors)
            wide = self.kernels.wide
            self.gate_sums_JSC = torch.empty_like(self.gate_weights_JSC, dtype=wide)

    def _gate_weights(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return [v_x, 1, b_xk] of every gate and frequent class [J, S, C].

        C is G + 2, or G + 1 without biases; on a GPU zeros follow, see `FusedLoss.buffer`.
        """
        embed = tensors["gate_embed"].to(self.compute).expand(self.gates, -1, -1)
        columns = [embed, embed.new_ones(*embed.shape[:2], 1)]
        if self.has_gate_bias:
            columns.append(tensors["gate_bias"].t().unsqueeze(-1).to(self.compute))
        return self._joined_columns(columns)

    def _joined_columns(self, columns: list[Tensor]) -> Tensor:
        """Return columns [..., c] side by side, as an operand of the gates' products."""
        width = sum(column.size(-1) for column in columns)
        padding = 0
        if columns[0].device.type != "cpu":
            padding = aligned(width, self.compute) - width
        shape = (*columns[0].shape[:-1], padding)
        return torch.cat([*columns, columns[0].new_zeros(shape)] if padding else columns, -1)

    @classmethod
    def floats_per_token(cls, head: Any) -> int:
        return head.num_classes + (2 * head.components - 1) * head.frequent

    def chunk(
        self, local: dict[str, Tensor], target_N: Tensor, scale_N: Tensor | None, random_state: Any
    ) -> tuple[Scores, dict[str, Tensor]]:
        contexts_NKD = local["contexts"].to(self.compute)
        tokens, components, _ = contexts_NKD.shape
        mixed_ND = local["mixed"].to(self.compute)
        hidden_JNC = self._gate_inputs(local) if self.gates else None
        common = len(self.frequent_SD)
        logits_NM = self.buffer("logits", tokens, self.plan.head.num_classes)
        leaves_NKS = self.buffer("leaves", tokens, components, common)
        gates_JNS = self.buffer("gates", self.gates, tokens, common)
        self.product(mixed_ND, self.rare_RD, logits_NM[:, common:])
        self.product(contexts_NKD.flatten(0, 1), self.frequent_SD, leaves_NKS.flatten(0, 1))
        if hidden_JNC is not None:
            # the product adds to the noise: both passes read and write the gates once
            noisy = random_state.fill_with_noise(gates_JNS)
            for k in range(self.gates):
                self.product(hidden_JNC[k], self.gate_weights_JSC[k], gates_JNS[k], adds=noisy)

        def block(a: int, b: int) -> Scores:
            part, leaves, gates = logits_NM[a:b], leaves_NKS[a:b], gates_JNS[:, a:b]
            factor = None if scale_N is None else scale_N[a:b]
            if common:
                self.kernels.tree_forward(leaves, gates, part[:, :common])
            rows = SoftmaxBlock(part, target_N[a:b], factor, self.plan.class_weights)
            scores = self.kernels.softmax_pass(rows, self.bias)
            if factor is not None and common:
                self.kernels.tree_backward(part[:, :common], leaves, gates)
            return scores

        width = self.floats_per_token(self.plan.head)
        blocks = self.kernels.row_blocks(tokens, width)
        scores = Scores(*concatenate(block(a, b) for a, b in blocks))
        if scale_N is None:
            return scores, {}
        factor_N = None if self.kernels.applies_factor else scale_N
        self.kernels.add_bias_gradient(logits_NM, factor_N)
        grads = self._context_products(
            logits_NM[:, common:], leaves_NKS, contexts_NKD, mixed_ND, factor_N
        )
        if hidden_JNC is not None:
            grads |= self._gate_products(gates_JNS, hidden_JNC, factor_N)
        return scores, grads

    def _context_products(
        self,
        rare_NR: Tensor,
        leaves_NKS: Tensor,
        contexts_NKD: Tensor,
        mixed_ND: Tensor,
        factor_N: Tensor | None,
    ) -> dict[str, Tensor]:
        rare_NR = self.narrow(rare_NR)
        grad_mixed = self.backward_products("rare", rare_NR, mixed_ND, self.rare_RD, factor_N)
        grad = self.narrow(leaves_NKS.flatten(0, 1))
        factor = None if factor_N is None else factor_N.repeat_interleave(contexts_NKD.size(1))
        order = self.kernels.leaf_order(contexts_NKD.size(1))
        rows = in_order(contexts_NKD, order).flatten(0, 1)
        found = self.backward_products("frequent", grad, rows, self.frequent_SD, factor)
        back = [order.index(leaf) for leaf in range(len(order))]
        return {"mixed": grad_mixed, "contexts": in_order(found.view_as(contexts_NKD), back)}

    def _gate_inputs(self, local: dict[str, Tensor]) -> Tensor:
        """Return [t_k, s_k, 1] [J, N, C]."""
        hidden_NJG = local["hidden"].to(self.compute)
        shared_NJ1 = local["shared"].to(self.compute).unsqueeze(-1)
        columns = [hidden_NJG, shared_NJ1]
        if self.has_gate_bias:
            columns.append(torch.ones_like(shared_NJ1))
        return self._joined_columns(columns).transpose(0, 1).contiguous()

    def _gate_products(
        self, gates_JNS: Tensor, hidden_JNC: Tensor, factor_N: Tensor | None
    ) -> dict[str, Tensor]:
        grads = []
        is_first = self.is_first("gates")
        for k in range(self.gates):
            grad_NS = self.narrow(gates_JNS[k])
            rows_NC = rows_times(hidden_JNC[k], factor_N)
            add_product_to(self.gate_sums_JSC[k], grad_NS, rows_NC, is_first)
            grads.append(rows_times_(grad_NS @ self.gate_weights_JSC[k], factor_N))
        grad_NJC = torch.stack(grads, 1)
        size = self.gate_dim
        return {"hidden": grad_NJC[..., :size], "shared": grad_NJC[..., size]}

    def finish(self) -> None:
        super().finish()
        if not self.gates:
            return
        size = self.gate_dim
        if "gate_embed" in self.sums:
            self.sums["gate_embed"].add_(self.gate_sums_JSC[..., :size].sum(0))
        if "gate_bias" in self.sums:
            self.sums["gate_bias"].add_(self.gate_sums_JSC[..., size + 1].t())


def in_order(x_NKD: Tensor, order: list[int]) -> Tensor:
    """Return x with x[:, order[j]] at j; it is x itself or a copy."""
    if order == sorted(order):
        return x_NKD
    # indexing with a list would synchronise with a GPU
    return torch.stack([x_NKD[:, source] for source in order], 1)
