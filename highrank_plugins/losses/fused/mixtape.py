"""Mixtape: gates of frequent classes, one mixed context for all others, one softmax."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.fused.base import Scores, rows_times, rows_times_
from highrank_plugins.losses.fused.scores import gather_scores
from highrank_plugins.losses.fused.softmax_pass import OneSoftmax
from highrank_plugins.losses.fused.tournament import back_down, slots_of_leaves, up
from highrank_plugins.losses.plan import LossPlan


class FusedMixtape(OneSoftmax):
    """Loss of log_softmax(f(z)): z_x = Σ_k π_xk h_k·w_x + b_x if x < S, else m·w_x + b_x.

    `local` holds the contexts h [n, K, D], their mixture m [n, D] for the rare classes, and, where
    there are gates, the hidden units t [n, K−1, G] and the shared gate logits s [n, K−1]. The gate
    logits t_k·v_x + s_k + b_xk are one product: [t_k, s_k, 1]·[v_x, 1, b_xk], whose gradient then
    holds the sums over classes and tokens as well. Everything of size [n, S] is changed in place.
    """

    reads: ClassVar[tuple[str, ...]] = ("weight", "bias", "gate_embed", "gate_bias")

    def __init__(
        self,
        plan: LossPlan,
        tensors: dict[str, Tensor],
        sums: dict[str, Tensor],
        compute: torch.dtype,
    ) -> None:
        super().__init__(plan, tensors, sums, compute)
        common = len(tensors.get("gate_embed", ()))
        split = [common, plan.head.num_classes - common]
        self.frequent, self.rare = self.weight.split(split)
        if "weight" in sums:
            frequent, rare = sums["weight"].split(split)
            self.sums = {**sums, "frequent": frequent, "rare": rare}
        bias = tensors.get("bias")
        self.bias = None if bias is None else bias.to(self.wide).contiguous()
        self.gates = len(tensors.get("gate_shared.weight", ())) if len(self.frequent) else 0
        if self.gates:
            self.gate_dim = tensors["gate_embed"].size(1)
            self.gate_weights = self._gate_weights(tensors)
            self.gate_sums = torch.zeros_like(self.gate_weights, dtype=self.wide)

    def _gate_weights(self, tensors: dict[str, Tensor]) -> Tensor:
        """[v_x, 1, b_xk] of every gate and frequent class [K−1, S, G + 2]; no last column without
        biases."""
        embed = tensors["gate_embed"].to(self.compute).expand(self.gates, -1, -1)
        columns = [embed, embed.new_ones(*embed.shape[:2], 1)]
        if "gate_bias" in tensors:
            columns.append(tensors["gate_bias"].t().unsqueeze(-1).to(self.compute))
        return torch.cat(columns, -1)

    @classmethod
    def floats_per_token(cls, head: Any) -> int:
        return head.num_classes + (2 * head.components - 1) * head.frequent

    def chunk(
        self, local: dict[str, Tensor], target: Tensor, scale: Tensor | None, draws: Any
    ) -> tuple[Scores, dict[str, Tensor]]:
        contexts = local["contexts"].to(self.compute)
        tokens, components, _ = contexts.shape
        mixed = local["mixed"].to(self.compute)
        hidden = self._gate_inputs(local) if self.gates else None
        common = len(self.frequent)
        logits = self.buffer("logits", tokens, self.plan.head.num_classes)
        leaves = self.buffer("leaves", tokens, components, common)
        gates = self.buffer("gates", self.gates, tokens, common)
        self.product(mixed, self.rare, logits[:, common:])
        self.product(contexts.flatten(0, 1), self.frequent, leaves.flatten(0, 1))
        if hidden is not None:
            for k in range(self.gates):
                self.product(hidden[k], self.gate_weights[k], gates[k])
            draws.add_noise_(gates.transpose(0, 1))

        def block(a: int, b: int) -> Scores:
            part, own_leaves, own_gates = logits[a:b], leaves[a:b], gates[:, a:b]
            if common:
                self.mix(own_leaves, own_gates, part[:, :common])
            factor = None if scale is None else scale[a:b]
            scores = self.softmax_pass(part, target[a:b], factor, self.bias)
            if factor is not None and common:
                self.unmix(part[:, :common], own_leaves, own_gates)
            return scores

        width = self.floats_per_token(self.plan.head)
        scores = gather_scores(block(a, b) for a, b in self.row_blocks(tokens, width))
        if scale is None:
            return scores, {}
        factor = None if self.factor_first else scale
        self.add_columns("bias", logits, factor)
        grads = self._context_products(logits[:, common:], leaves, contexts, mixed, factor)
        if hidden is not None:
            grads |= self._gate_products(gates, hidden, factor)
        return scores, grads

    def mix(self, leaves: Tensor, gates: Tensor, out: Tensor) -> None:
        """out [n, S] = Σ_j π_j leaf_j, given leaves [n, K, S] and gate logits [K − 1, n, S]."""
        up(leaves.unbind(1), gates.unbind(), out)

    def unmix(self, grad: Tensor, leaves: Tensor, gates: Tensor) -> None:
        """What `mix` left of leaves and gates becomes their gradients, given that of its `out`."""
        back_down(grad, leaves.unbind(1), gates.unbind())

    def by_slot(self, contexts: Tensor) -> Tensor:
        """[n, K, D] in the order in which `unmix` leaves the gradients of leaves."""
        return in_order(contexts, slots_of_leaves(contexts.size(1)))

    def by_leaf(self, grads: Tensor) -> Tensor:
        """[n, K, D] in that order, put into the order of leaves."""
        slots = slots_of_leaves(grads.size(1))
        return in_order(grads, [slots.index(leaf) for leaf in range(len(slots))])

    def _context_products(
        self,
        rare: Tensor,
        leaves: Tensor,
        contexts: Tensor,
        mixed: Tensor,
        factor: Tensor | None,
    ) -> dict[str, Tensor]:
        rare = rare.to(self.compute)
        grad_mixed = self.backward_products("rare", rare, mixed, self.rare, factor)
        grad = leaves.flatten(0, 1).to(self.compute)
        factors = None if factor is None else factor.repeat_interleave(contexts.size(1))
        rows = self.by_slot(contexts).flatten(0, 1)
        result = self.backward_products("frequent", grad, rows, self.frequent, factors)
        return {"mixed": grad_mixed, "contexts": self.by_leaf(result.view_as(contexts))}

    def _gate_inputs(self, local: dict[str, Tensor]) -> Tensor:
        """[t_k, s_k, 1] [K−1, n, G + 2]."""
        hidden, shared = local["hidden"].to(self.compute), local["shared"].to(self.compute)
        columns = [hidden, shared.unsqueeze(-1)]
        if self.gate_weights.size(-1) > hidden.size(-1) + 1:
            columns.append(torch.ones_like(columns[1]))
        return torch.cat(columns, -1).transpose(0, 1).contiguous()

    def _gate_products(
        self, gates: Tensor, hidden: Tensor, factor: Tensor | None
    ) -> dict[str, Tensor]:
        grads = []
        for k in range(self.gates):
            grad = gates[k].to(self.compute)
            rows = rows_times(hidden[k], factor)
            if rows.dtype == self.gate_sums.dtype:
                self.gate_sums[k].addmm_(grad.t(), rows)
            else:
                self.gate_sums[k].add_(grad.t() @ rows)
            grads.append(rows_times_(grad @ self.gate_weights[k], factor))
        grad_hidden = torch.stack(grads, 1)
        size = self.gate_dim
        return {"hidden": grad_hidden[..., :size], "shared": grad_hidden[..., size]}

    def finish(self) -> None:
        if not self.gates:
            return
        size = self.gate_dim
        if "gate_embed" in self.sums:
            self.sums["gate_embed"].add_(self.gate_sums[..., :size].sum(0))
        if "gate_bias" in self.sums:
            self.sums["gate_bias"].add_(self.gate_sums[..., size + 1].t())


def in_order(x: Tensor, order: list[int]) -> Tensor:
    """x [n, K, D] with x[:, order[j]] at j, in memory of its own."""
    # no indexing with a list: a GPU would wait for it
    return torch.stack([x[:, source] for source in order], 1)
