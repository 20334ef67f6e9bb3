"""Define Mixtape (Yang et al. 2019): mixed logits with one softmax.

The gates come from a binary tree of sigmoids in heap order: inner nodes 1..K−1, the children of i
are 2i and 2i + 1, gate k is node k + 1, leaf j is node K + j. Going left (to 2i) multiplies by
σ(l_i), going right by σ(−l_i). K = 4 is eq. 3 of the paper. A softmax in place of the tree is a
control: gates with as many parameters, whose K terms are divided by their sum.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from highrank_plugins.heads import mixtape_options
from highrank_plugins.heads.base import register_head
from highrank_plugins.heads.checks import integer, not_negative, probability, widen
from highrank_plugins.heads.mixtures import Mixture
from highrank_plugins.heads.pointwise import Pointwise
from highrank_plugins.heads.random_state import (
    ChunkRandomState,
    RandomState,
    sample_mask,
    sample_noise_seed,
)
from highrank_plugins.losses.autograd import linear_of
from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.mixtape import FusedMixtape


@register_head("mixtape")
class Mixtape(Mixture):
    """Compute log_softmax(f(z)), z_x = Σ_k π_{x,k} h_k·w_x + b_x   (Yang et al. 2019, eq. 2–6).

    The gates π_x come from a sigmoid tree over K − 1 gate logits, or from their softmax with 0.
    Frequent classes x < S have their own, l_{x,k} = v_x·tanh(U_k g) + u_k·g + b_{x,k}; all others
    share l_k = u_k·g, so that their contexts are mixed once and cost one product with W.

    Parameters: `gate_hidden.weight` [(K−1)·G, F] (U, gate-major), `gate_shared.weight` [K−1, F]
    (u), `gate_embed` [S, G] (V), `gate_bias` [S, K−1] (b_{x,k}); G = gate_dim.

    Args:
        components: K, a power of two for a tree.
        gates: "tree", or "softmax", which has no fused loss.
        context_scale: s, see `Mixture`.
        frequent: S in [0, M]; class ids must be sorted by frequency. Default M // 2.
        gate_dim: G, the paper's d2.
        dropout: rate on the contexts h; locked_dropout: one mask for all time steps.
        gate_dropout: rate on tanh(U g).
        gate_noise: standard deviation of noise on the frequent gates' logits in training.
        gate_weight_norm: constant norm of every row of U; 0 leaves U free.
        gate_hidden_bias, gate_shared_bias: biases of U g and u·g, which the paper lacks.
        gate_class_bias: b_{x,k}, which the paper has.
        num_classes, feature_dim, embed_dim, weight, bias, pointwise: as `Head`.
    """

    fused: type[FusedLoss] | None = FusedMixtape
    weights_by_class = True
    has_prior = False
    constants = ("context_scale", "gates", "gate_weight_norm")
    set_by = mixtape_options.SET_BY
    other_options = mixtape_options.OTHER_OPTIONS
    language_model_defaults: ClassVar = {"frequent_ratio": 0.1}
    option_help = mixtape_options.OPTION_HELP

    def __init__(
        self, num_classes: int, feature_dim: int, embed_dim: int | None = None,
        weight: nn.Parameter | None = None, bias: bool = True,
        pointwise: str | Pointwise = "identity",
        components: int = 4, context_scale: float = 1.0,
        frequent: int | None = None, gates: str = "tree", gate_dim: int = 64,
        dropout: float = 0.0, locked_dropout: bool = False,
        gate_dropout: float = 0.0, gate_noise: float = 0.0, gate_weight_norm: float = 0.0,
        gate_hidden_bias: bool = False, gate_shared_bias: bool = False,
        gate_class_bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_classes, feature_dim, embed_dim, weight, bias, pointwise,
            components, context_scale, dropout, locked_dropout,
        )  # fmt: skip
        if gates not in MEANS:
            raise ValueError(f"mixtape: gates must be {' or '.join(MEANS)}, got {gates!r}")
        self.gates = gates
        if gates != "tree":
            self.fused = None
        elif not is_power_of_two(self.components):
            raise ValueError(f"mixtape: components must be a power of two, got {components}")
        half = num_classes // 2
        self.frequent = integer("frequent", half if frequent is None else frequent, least=0)
        if self.frequent > num_classes:
            raise ValueError(f"mixtape: frequent must lie in [0, {num_classes}], got {frequent}")
        self.gate_dim = integer("gate_dim", gate_dim)
        self.gate_dropout = probability("gate_dropout", gate_dropout)
        self.gate_noise = not_negative("gate_noise", gate_noise)
        self.gate_weight_norm = not_negative("gate_weight_norm", gate_weight_norm)
        self.gate_hidden_bias = bool(gate_hidden_bias)
        self.gate_shared_bias = bool(gate_shared_bias)
        self.gate_class_bias = bool(gate_class_bias)
        self._make_gates()

    def _make_gates(self) -> None:
        gates = self.components - 1
        if gates == 0:
            return
        self.gate_hidden = nn.Linear(
            self.feature_dim, gates * self.gate_dim, bias=self.gate_hidden_bias
        )
        self.gate_shared = nn.Linear(self.feature_dim, gates, bias=self.gate_shared_bias)
        embed = torch.empty(self.frequent, self.gate_dim).uniform_(-0.1, 0.1)
        self.gate_embed = nn.Parameter(embed)
        if self.gate_class_bias:
            self.gate_bias = nn.Parameter(torch.zeros(self.frequent, gates))

    @classmethod
    def arguments(cls, options: dict[str, Any], num_classes: int) -> dict[str, Any]:
        return mixtape_options.arguments(options, num_classes)

    def needs_sorted_classes(self) -> str | None:
        if not self.frequent:
            return None
        return (
            "mixtape gives gates of their own to the most frequent classes "
            "(--head-frequent-ratio 0 gives them to none)"
        )

    def sample_masks(self, leading: torch.Size, like: Tensor) -> RandomState:
        random_state = super().sample_masks(leading, like)
        if self.gate_dropout and (self.training or self.retain_dropout):
            width = (self.components - 1) * self.gate_dim
            random_state.masks["gate"] = sample_mask(
                leading, width, self.gate_dropout, self.locked_dropout, like
            )
        if self.training and self.gate_noise:
            random_state.noise_sd, random_state.noise_seed = self.gate_noise, sample_noise_seed()
        return random_state

    def tensors(self) -> dict[str, Tensor]:
        tensors = super().tensors()
        for name in tensors.keys() & {"bias", "gate_bias"}:  # added to widened logits
            tensors[name] = widen(tensors[name])
        if self.gate_weight_norm and self.components > 1:
            raw = tensors["gate_hidden.weight"]
            normed = raw / widen(raw).norm(dim=-1, keepdim=True).to(raw.dtype)
            tensors["gate_hidden.weight"] = self.gate_weight_norm * normed
        return tensors

    def token_inputs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> dict[str, Tensor]:
        contexts_NKD = self.contexts(features, tensors, random_state)
        if self.components == 1:
            return {"contexts": contexts_NKD, "mixed": contexts_NKD.squeeze(1)}
        shared_NJ = widen(linear_of(features, tensors, "gate_shared"))  # u_k·g
        return {
            "contexts": contexts_NKD,
            "mixed": self._mixed(contexts_NKD, shared_NJ),
            "shared": shared_NJ,
            "hidden": self._gate_hidden(features, tensors, random_state),
        }

    def _mixed(self, contexts_NKD: Tensor, shared_NJ: Tensor) -> Tensor:
        """Return the contexts' mixture for the rare classes [n, D], in the contexts' dtype.

        In half precision it is a product with π = high + low, two halves of a wide number. On a GPU
        the tree over widened contexts would move ten times the bytes.
        """
        gates_NJ1 = shared_NJ.unsqueeze(-1)
        dtype, count = contexts_NKD.dtype, self.components
        if dtype == shared_NJ.dtype:
            return self._mean(contexts_NKD, gates_NJ1)
        # the mean of leaves that are unit vectors
        eye_KK = torch.eye(count, dtype=shared_NJ.dtype, device=shared_NJ.device)
        probs_NK = self._mean(eye_KK.expand(len(shared_NJ), -1, -1), gates_NJ1)
        high_NK = probs_NK.detach().to(dtype)
        low_NK = (probs_NK - high_NK).to(dtype)  # carries the whole gradient
        return torch.stack((high_NK, low_NK), 1).matmul(contexts_NKD).sum(1)

    def _gate_hidden(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        """Return tanh(U_k g) [n, J, G]."""
        hidden = linear_of(features, tensors, "gate_hidden")
        return random_state.dropout("gate", hidden.tanh()).unflatten(-1, (-1, self.gate_dim))

    def chunk_logits(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        inputs = self.token_inputs(features, tensors, random_state)
        # one split, because two slices would each pad their gradient to full size
        weight_SD, weight_RD = tensors["weight"].split(self._split())
        frequent_NS = self._frequent_logits(inputs, weight_SD, tensors, random_state)
        rare_NR = widen(linear(inputs["mixed"], weight_RD))
        logits_NM = torch.cat((frequent_NS, rare_NR), -1)
        bias = tensors.get("bias")
        return logits_NM if bias is None else logits_NM.add_(bias)

    def _frequent_logits(
        self,
        inputs: dict[str, Tensor],
        weight_SD: Tensor,
        tensors: dict[str, Tensor],
        random_state: ChunkRandomState,
    ) -> Tensor:
        """Return Σ_k π_{x,k} h_k·w_x of the frequent classes [n, S], widened."""
        leaves_NKS = widen(linear(inputs["contexts"], weight_SD))
        if "hidden" not in inputs:
            return leaves_NKS.squeeze(1)
        return self._mean(leaves_NKS, self.class_gate_logits(inputs, tensors, random_state))

    def class_gate_logits(
        self, inputs: dict[str, Tensor], tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        """Return l_{x,k} of the frequent classes [n, J, S], widened."""
        own_NJS = widen(linear(inputs["hidden"], tensors["gate_embed"]))
        gates_NJS = own_NJS.add_(inputs["shared"].unsqueeze(-1))
        if "gate_bias" in tensors:
            gates_NJS = gates_NJS.add_(tensors["gate_bias"].t())
        return random_state.add_noise(gates_NJS)

    def _split(self) -> list[int]:
        return [self.frequent, self.num_classes - self.frequent]

    def logit_vectors(self, features: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        contexts_NKD = self.contexts(features, tensors, ChunkRandomState())
        return widen(linear(contexts_NKD, tensors["weight"]))

    def nll_of_logits(
        self, z: Tensor, target: Tensor, features: Tensor, tensors: dict[str, Tensor]
    ) -> Tensor:
        inputs = self.token_inputs(features, tensors, ChunkRandomState())
        if self.components > 1:
            own_NJS = self.class_gate_logits(inputs, tensors, ChunkRandomState())
            shared_NJ1 = inputs["shared"].unsqueeze(-1)
            rare_NJR = shared_NJ1.expand(-1, -1, self.num_classes - self.frequent)
            z = self._mean(z, torch.cat((own_NJS, rare_NJR), -1)).unsqueeze(1)
        bias = tensors.get("bias")
        return super().nll_of_logits(z if bias is None else z + bias, target, features, tensors)

    def log_weights(
        self, features: Tensor, target: Tensor, tensors: dict[str, Tensor]
    ) -> Tensor | None:
        if self.components == 1:
            return None
        inputs = self.token_inputs(features, tensors, ChunkRandomState())
        logits_NJ = inputs["shared"]
        if self.frequent:
            row_N = target.clamp_max(self.frequent - 1)
            own_NJ = torch.einsum("nkg,ng->nk", inputs["hidden"], tensors["gate_embed"][row_N])
            own_NJ = widen(own_NJ) + logits_NJ
            if "gate_bias" in tensors:
                own_NJ = own_NJ + tensors["gate_bias"][row_N]
            logits_NJ = torch.where(target.unsqueeze(-1) < self.frequent, own_NJ, logits_NJ)
        return self._probabilities(logits_NJ.unsqueeze(-1).double()).squeeze(-1).log()

    def class_gates(self, features: Tensor, tensors: dict[str, Tensor]) -> Tensor | None:
        if self.components == 1:
            return None
        inputs = self.token_inputs(features, tensors, ChunkRandomState())
        own_NJS = self.class_gate_logits(inputs, tensors, ChunkRandomState())
        return self._probabilities(
            torch.cat((own_NJS, inputs["shared"].unsqueeze(-1)), -1).double()
        )

    def _mean(self, leaves_NKS: Tensor, gates_NJS: Tensor) -> Tensor:
        """Return Σ_k π_k leaf_k [n, S], see `sigmoid_tree`."""
        return MEANS[self.gates](leaves_NKS, gates_NJS)

    def _probabilities(self, gates_NJS: Tensor) -> Tensor:
        """Return π [N, K, S] of gate logits."""
        count = gates_NJS.size(1) + 1
        # π_k is the mean of leaves that are 1 at k and 0 elsewhere
        leaves = torch.eye(count, dtype=gates_NJS.dtype, device=gates_NJS.device)
        shape = (len(gates_NJS), count, gates_NJS.size(-1))
        return torch.stack(
            [self._mean(leaf.view(1, -1, 1).expand(shape), gates_NJS) for leaf in leaves], 1
        )

    def products(self, tokens: int) -> list[tuple[int, int, int]]:
        n, k, f, d = tokens, self.components, self.feature_dim, self.embed_dim
        gates, width = k - 1, self.gate_dim
        own = [(n, f, gates * width), (n, f, gates), (n * gates, width, self.frequent)]
        rare = (n, d, self.num_classes - self.frequent)
        return [(n, f, k * d), *own, (n * k, d, self.frequent), rare]

    def floats_per_token(self) -> int:
        return 4 * self.num_classes + 6 * self.components * (self.frequent + self.embed_dim)


def is_power_of_two(k: int) -> bool:
    """Whether a tree with k leaves is full."""
    return k > 0 and k & (k - 1) == 0


def sigmoid_tree(leaves_NKS: Tensor, gates_NJS: Tensor) -> Tensor:
    """Return Σ_j π_j leaf_j, where π are the tree's probabilities.

    Each inner node takes the weighted mean of its two children, so that no gate probability is
    ever stored, and saturated gates lose nothing.

    Args:
        leaves_NKS: values of the components.
        gates_NJS: gate logits, or [N, J, 1] for a gate that S values share.
    Returns:
        [n, S].
    """
    values = leaves_NKS
    while (count := values.size(1)) > 1:
        # not two slices, whose gradients would each be padded to full size
        left, right = values.unflatten(1, (-1, 2)).unbind(2)
        # nodes count/2 .. count − 1 are the parents of this level
        gate = gates_NJS[:, count // 2 - 1 : count - 1].sigmoid()
        values = right.lerp(left, gate.expand_as(left))
    return values.squeeze(1)


def softmax_mean(leaves_NKS: Tensor, gates_NJS: Tensor) -> Tensor:
    """Return Σ_j π_j leaf_j [n, S] with π = softmax(l_1, …, l_{K−1}, 0), see `sigmoid_tree`."""
    probs_NKS = pad(gates_NJS, (0, 0, 0, 1)).softmax(1)
    return (probs_NKS * leaves_NKS).sum(1)


MEANS = {"tree": sigmoid_tree, "softmax": softmax_mean}
