"""Compute Mixtape's loss: gates of frequent classes, one mixed context for others, one softmax."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from highrank_plugins.losses.autograd import GradientSum
from highrank_plugins.losses.chunking import chunk_memory, chunk_ranges, join_chunks
from highrank_plugins.losses.fused import FusedLoss, LossChunk
from highrank_plugins.losses.plan import (
    AnyHead,
    GateProduct,
    Named,
    Scores,
    SoftmaxBlock,
    TreeBlock,
)
from highrank_plugins.own_layers.ours import stored_matrix

# Blocks in which a chunk has its leaves and gates, at most. On a GPU the chunk then has several
# times as many tokens, and so the rare classes' product and those of `token_inputs` read and write
# their float32 sums less often. The frequent classes' product has K rows for each token anyway.
LEAF_BLOCKS = {"cpu": 1, "cuda": 4}


class FusedMixtape(FusedLoss):
    """Compute log_softmax(f(z)): z_x = Σ_k π_xk h_k·w_x + b_x if x < S, else m·w_x + b_x.

    `given` holds the contexts h [N, K, D], their mixture m [N, D] for the rare classes, and, where
    there are gates, the hidden units t [N, J, G] and the shared gate logits s [N, J]. The gate
    logits t_k·v_x + s_k + b_xk of all k are one product, [t_k, s_k, e_k]·[v_x, 1, b_x], whose
    gradient then holds the sums over classes and tokens as well; e_k is a unit vector. Everything
    of size [N, S] is changed in place.
    """

    reads: ClassVar[tuple[str, ...]] = (*FusedLoss.reads, "gate_embed", "gate_bias")
    holds_components = True

    def prepare(self, tensors: Named) -> None:
        common = len(tensors.get("gate_embed", ()))
        split = [common, self.plan.head.num_classes - common]
        self.frequent_SD, self.rare_RD = self.weight.split(split)
        self.place = tensors.get("place")  # of each class among the rows of the matrix
        self.frequent_sum = self.rare_sum = None
        if "weight" in self.sums:
            parts = self.sums["weight"].split(split)
            self.frequent_sum, self.rare_sum = map(GradientSum, parts)
        self.gates = len(tensors.get("gate_shared.weight", ())) if common else 0
        self.by_softmax = self.gates > 0 and self.plan.head.gates == "softmax"
        self.has_gate_bias = "gate_bias" in tensors
        if self.gates:
            self.gate_dim = tensors["gate_embed"].size(1)
            self.gate_weights_SC = self._gate_weights(tensors)
            like_SC = torch.empty_like(self.gate_weights_SC, dtype=self.kernels.wide)
            self.gates_sum = GradientSum(like_SC)

    def _gate_weights(self, tensors: Named) -> Tensor:
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
    def floats_per_token(cls, head: AnyHead) -> int:
        blocks = LEAF_BLOCKS.get(stored_matrix(head).device.type, LEAF_BLOCKS["cuda"])
        return head.num_classes + -(-cls._floats_of_leaves(head) // blocks)

    @staticmethod
    def _floats_of_leaves(head: AnyHead) -> int:
        """Return how many numbers leaves and gates have per token."""
        return (2 * head.components - (head.gates == "tree")) * head.frequent

    def _leaf_tokens(self, tokens: int) -> int:
        """Return how many tokens of a chunk may have leaves and gates beside all its logits."""
        head, device = self.plan.head, self.plan.features.device.type
        if self.plan.split is not None:  # other processes have other numbers of frequent classes
            return -(-tokens // LEAF_BLOCKS.get(device, LEAF_BLOCKS["cuda"]))
        shape = (self.weight.size(0), self.weight.size(1))
        memory = chunk_memory(self.plan.features, self.plan.memory, shape)
        floats = memory // self.kernels.bytes_per_logit
        each = self.floats_per_token(head) - head.num_classes
        least = tokens * each // max(1, self._floats_of_leaves(head))
        left = floats - tokens * head.num_classes
        return max(1, least, left // max(1, self._floats_of_leaves(head)))

    def chunk(self, chunk: LossChunk) -> Scores:
        if self.place is not None and self.plan.soft is None:
            chunk = chunk._replace(target_N=self.place[chunk.target_N])
        tokens, common = len(chunk.target_N), len(self.frequent_SD)
        mixed_ND = chunk.given["mixed"].to(self.compute)
        logits_NM = self.buffer("logits", tokens, self.plan.head.num_classes)
        rare_NR = logits_NM[:, common:]
        self.product(mixed_ND, self.rare_RD, rare_NR)
        blocks = (
            self._block(chunk.rows(a, b), logits_NM[a:b])
            for a, b in chunk_ranges(0, tokens, self._leaf_tokens(tokens))
        )
        scores = Scores(*join_chunks(tokens, blocks))
        if chunk.scale_N is None:
            return scores
        scale_N, out = chunk.scale_N, chunk.grads["mixed"]
        self.kernels.add_bias_gradient(logits_NM, scale_N)
        self.backward_products(self.rare_sum, rare_NR, mixed_ND, self.rare_RD, scale_N, out)
        return scores

    def _block(self, block: LossChunk, logits_NM: Tensor) -> Scores:
        """Return scores of tokens whose rare logits are there, and gradients of gates."""
        contexts_NKD = block.given["contexts"].to(self.compute)
        tokens, components, _ = contexts_NKD.shape
        common, kernels = len(self.frequent_SD), self.kernels
        leaves_NKS = self.buffer("leaves", tokens, components, common)
        all_gates = self.buffer("gates", self.gates + self.by_softmax, tokens, common)
        gates_JNS = all_gates[: self.gates]
        self.product(contexts_NKD.flatten(0, 1), self.frequent_SD, leaves_NKS.flatten(0, 1))
        hidden_JNC = product = None
        if self.gates:
            hidden_JNC = self._gate_inputs(block.given)
            random_state = self.plan.random_state.rows(block.start, block.start + tokens)
            noisy = random_state.fill_with_noise(gates_JNS)  # to which the product adds
            if kernels.computes_gates and not self.by_softmax:
                product = GateProduct(hidden_JNC, self.gate_weights_SC, noisy)
            else:
                rows = hidden_JNC.flatten(0, 1)
                self.product(rows, self.gate_weights_SC, gates_JNS.flatten(0, 1), adds=noisy)
        all_gates[self.gates :] = 0
        tree = TreeBlock(leaves_NKS, all_gates, product)
        every = SoftmaxBlock(logits_NM, block.target_N, block.scale_N, self.plan.class_weights)

        by_tree = kernels.tree_forward, kernels.tree_backward
        forward, backward = (softmax_forward, softmax_backward) if self.by_softmax else by_tree

        def passes(a: int, b: int) -> Scores:
            part, rows = tree.rows(a, b), every.rows(a, b)
            if common:
                forward(part, rows.logits_NM[:, :common])
            scores = kernels.softmax_pass(rows, self.bias)
            if rows.scale_N is not None and common:
                backward(part, rows.logits_NM[:, :common])
            return scores

        width = self.plan.head.num_classes + self._floats_of_leaves(self.plan.head)
        blocks = (passes(a, b) for a, b in kernels.row_blocks(tokens, width))
        scores = Scores(*join_chunks(tokens, blocks))
        if (scale_N := block.scale_N) is not None:
            self._leaf_products(leaves_NKS, contexts_NKD, scale_N, block.grads["contexts"])
            if hidden_JNC is not None:
                self._gate_products(gates_JNS, hidden_JNC, scale_N, block.grads)
            elif "hidden" in block.grads:
                block.grads["hidden"].zero_(), block.grads["shared"].zero_()
        return scores

    def _leaf_products(
        self, leaves_NKS: Tensor, contexts_NKD: Tensor, scale_N: Tensor, out_NKD: Tensor
    ) -> None:
        factor = scale_N.repeat_interleave(contexts_NKD.size(1))
        found_NKD = out_NKD
        rotates = self.kernels.rotates_leaves and not self.by_softmax
        if rotates:
            contexts_NKD = contexts_NKD.roll(-1, 1)
            found_NKD = torch.empty_like(out_NKD)
        self.backward_products(
            self.frequent_sum, leaves_NKS.flatten(0, 1), contexts_NKD.flatten(0, 1),
            self.frequent_SD, factor, found_NKD.flatten(0, 1),
        )  # fmt: skip
        if rotates:
            out_NKD.copy_(found_NKD.roll(1, 1))

    def _gate_inputs(self, local: Named) -> Tensor:
        """Return [t_k, s_k, e_k] [J, N, C], the unit vector e_k only where there are biases."""
        hidden_JNG = local["hidden"].to(self.compute).transpose(0, 1)
        columns = [hidden_JNG, local["shared"].to(self.compute).t().unsqueeze(-1)]
        if self.has_gate_bias:
            gates, tokens, _ = hidden_JNG.shape
            unit_JJ = torch.eye(gates, dtype=self.compute, device=hidden_JNG.device)
            columns.append(unit_JJ.unsqueeze(1).expand(-1, tokens, -1))
        return self._joined_columns(columns)

    def _gate_products(
        self, gates_JNS: Tensor, hidden_JNC: Tensor, scale_N: Tensor, grads: Named
    ) -> None:
        factor = scale_N.repeat(self.gates)
        found_JNC = torch.empty_like(hidden_JNC)
        self.backward_products(
            self.gates_sum, gates_JNS.flatten(0, 1), hidden_JNC.flatten(0, 1),
            self.gate_weights_SC, factor, found_JNC.flatten(0, 1), filtered=False,
        )  # fmt: skip
        grad_NJC = found_JNC.transpose(0, 1)
        grads["hidden"].copy_(grad_NJC[..., : self.gate_dim])
        grads["shared"].copy_(grad_NJC[..., self.gate_dim])

    def finish(self) -> None:
        super().finish()
        if not self.gates:
            return
        size = self.gate_dim
        if "gate_embed" in self.sums:
            self.sums["gate_embed"].copy_(self.gates_sum.total[:, :size])
        if "gate_bias" in self.sums:
            biases = slice(size + 1, size + 1 + self.gates)
            self.sums["gate_bias"].copy_(self.gates_sum.total[:, biases])


def softmax_forward(block: TreeBlock, out_NS: Tensor) -> None:
    """Write Σ_k π_k leaf_k into `out`, with π the softmax of the gate logits; the last one is 0.

    Leaves and gates then hold what `softmax_backward` needs: leaf_k − out, and π_k.
    """
    leaves_NKS, gates_KNS = block.leaves_NKS, block.gates_JNS
    torch.softmax(gates_KNS, 0, out=gates_KNS)
    out_NS.zero_()
    for leaf_NS, gate_NS in zip(leaves_NKS.unbind(1), gates_KNS.unbind(), strict=True):
        out_NS.addcmul_(leaf_NS, gate_NS)
    leaves_NKS.sub_(out_NS.unsqueeze(1))


def softmax_backward(block: TreeBlock, grad_NS: Tensor) -> None:
    """Turn leaves and gates into their gradients g π_k and g π_k (leaf_k − out)."""
    for leaf_NS, gate_NS in zip(block.leaves_NKS.unbind(1), block.gates_JNS.unbind(), strict=True):
        below_NS = grad_NS * gate_NS
        torch.mul(leaf_NS, below_NS, out=gate_NS)
        leaf_NS.copy_(below_NS)
