"""Define Mixtape (Yang et al. 2019): mixed logits with one softmax.

The gates come from a binary tree of sigmoids in heap order: inner nodes 1..K−1, the children of i
are 2i and 2i + 1, gate k is node k + 1, leaf j is node K + j. Going left (to 2i) multiplies by
σ(l_i), going right by σ(−l_i). K = 4 is eq. 3 of the paper. A softmax in place of the tree is a
control: gates with as many parameters, whose K terms are divided by their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from highrank_plugins.heads.base import register_head
from highrank_plugins.heads.checks import (
    NOT_NEGATIVE,
    RATE,
    class_order,
    integer,
    number,
    number_of_frequent,
)
from highrank_plugins.heads.log_probs import widen
from highrank_plugins.heads.mixtures import Mixture
from highrank_plugins.heads.pointwise import Pointwise
from highrank_plugins.heads.random_state import RandomState, sample_mask
from highrank_plugins.losses.autograd import linear_of
from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.mixtape import FusedMixtape
from highrank_plugins.losses.plan import Named

# whether U g, u·g and each frequent class have a bias
BIASES = {"paper": (False, False, True), "full": (True, True, True), "none": (False, False, False)}


@register_head("mixtape")
class Mixtape(Mixture):
    """Compute log_softmax(f(z)), z_x = Σ_k π_{x,k} h_k·w_x + b_x   (Yang et al. 2019, eq. 2–6).

    The gates π_x come from a sigmoid tree over K − 1 gate logits, or from their softmax with 0.
    S frequent classes, the first or chosen ones, have l_{x,k} = v_x·tanh(U_k g) + u_k·g + b_{x,k};
    all others share l_k = u_k·g, so that their contexts are mixed once and cost one product with W.
    Chosen classes come first in `tensors`; features, targets and results know only their ids.

    Parameters: `gate_hidden.weight` [(K−1)·G, F] (U, gate-major), `gate_shared.weight` [K−1, F]
    (u), `gate_embed` [S, G] (V), `gate_bias` [S, K−1] (b_{x,k}); G = gate_dim.

    Args:
        gates: "tree" of sigmoids, or "softmax" as its control, with any K.
        frequent: S in [0, M]; class ids must be sorted by frequency, or one of the last two
            arguments be given. Default: from the next two.
        frequent_ratio: share r in [0, 1] of the most frequent classes, with gates of their own.
        frequent_multiple: round the number S of these classes to the nearest multiple of N, which
            GPUs compute faster, unless it is below N; 1: do not round. A checkpoint keeps its S.
        gate_dim: width G of the gates' hidden layer, the paper's d2.
        gate_dropout: dropout on the gates' hidden layer tanh(U g).
        gate_noise: standard deviation of Gaussian noise on the frequent gates' logits in training;
            slow on a CPU.
        gate_weight_norm: constant norm of every row of U; 0 leaves U free.
        gate_biases: biases of the gates: "paper" (those of frequent classes), "full" (of U g and
            of the shared gates, too) or "none".
        frequent_classes: S ids of the frequent classes, in the order of `gate_embed`'s rows.
        class_counts: M numbers, of which the S largest are those of the frequent classes.
        components, context_scale, dropout, locked_dropout: as `Mixture`; the others as `Head`.
    """

    fused: type[FusedLoss] | None = FusedMixtape
    weights_by_class = True
    has_prior = False
    class_order: Tensor | None
    constants = ("context_scale", "gates", "gate_weight_norm")
    no_options = ("locked_dropout", "frequent", "frequent_classes", "class_counts")
    language_model_defaults: ClassVar = {"frequent_ratio": 0.1}

    def __init__(
        self, num_classes: int, feature_dim: int, embed_dim: int | None = None,
        weight: nn.Parameter | None = None, bias: bool = True,
        pointwise: str | Pointwise = "identity",
        components: int = 4, context_scale: float = 1.0,
        frequent: int | None = None, gates: str = "tree", gate_dim: int = 64,
        dropout: float = 0.0, locked_dropout: bool = False,
        gate_dropout: float = 0.0, gate_noise: float = 0.0, gate_weight_norm: float = 0.0,
        frequent_ratio: float = 0.5, frequent_multiple: int = 64, gate_biases: str = "paper",
        frequent_classes: Sequence[int] | Tensor | None = None,
        class_counts: Sequence[float] | Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            num_classes, feature_dim, embed_dim, weight, bias, pointwise,
            components, context_scale, dropout, locked_dropout,
        )  # fmt: skip
        self.gates, self.gate_biases = gates, gate_biases
        for name, value, known in (("gates", gates, MEANS), ("gate_biases", gate_biases, BIASES)):
            if value not in known:
                raise ValueError(f"mixtape: {name} must be {' or '.join(known)}, got {value!r}")
        if gates == "tree" and self.components.bit_count() != 1:  # it would not be full
            raise ValueError(f"mixtape: components must be a power of two, got {components}")
        if frequent is None:
            by_ratio = number_of_frequent(frequent_ratio, frequent_multiple, num_classes)
            frequent = by_ratio if frequent_classes is None else len(frequent_classes)
        self._choose_frequent(frequent, frequent_classes, class_counts)
        self.gate_dim = integer("gate_dim", gate_dim)
        self.gate_dropout = number("gate_dropout", gate_dropout, RATE)
        self.gate_noise = number("gate_noise", gate_noise, NOT_NEGATIVE)
        self.gate_weight_norm = number("gate_weight_norm", gate_weight_norm, NOT_NEGATIVE)
        self._add_gates()

    def _choose_frequent(self, count: int, classes: Any, counts: Any) -> None:
        self.frequent = integer("frequent", count, least=0)
        if self.frequent > self.num_classes:
            raise ValueError(f"mixtape: frequent must be at most {self.num_classes}, got {count}")
        if classes is None and counts is None and 0 < self.frequent < self.num_classes:
            self.needs_sorted_classes = (
                "mixtape gives gates of their own to the most frequent classes "
                "(--head-frequent-ratio 0 gives them to none)"
            )
        self._order = class_order(self.num_classes, self.frequent, classes, counts)
        found = None if self._order is None else torch.tensor(self._order)
        self.register_buffer("class_order", found)  # ids; None: as they are

    def _add_gates(self) -> None:
        count = self.components - 1
        of_hidden, of_shared, of_classes = BIASES[self.gate_biases]
        if count:
            self.gate_hidden = nn.Linear(self.feature_dim, count * self.gate_dim, bias=of_hidden)
            self.gate_shared = nn.Linear(self.feature_dim, count, bias=of_shared)
            self.gate_embed = nn.Parameter(torch.empty(self.frequent, self.gate_dim))
            if of_classes:
                self.gate_bias = nn.Parameter(torch.empty(self.frequent, count))
        self._reset_gates()

    def reset_parameters(self, submodules: bool = True) -> None:
        super().reset_parameters(submodules)
        if submodules and self.components > 1:
            self.gate_hidden.reset_parameters()
            self.gate_shared.reset_parameters()
        self._reset_gates()

    def _reset_gates(self) -> None:
        """Start with gates that all classes share, nearly."""
        for name, parameter in self.named_parameters(recurse=False):
            if name == "gate_embed":
                nn.init.uniform_(parameter, -0.1, 0.1)
            elif name == "gate_bias":
                nn.init.zeros_(parameter)
        if self.class_order is not None:  # after to_empty
            self.class_order.copy_(torch.tensor(self._order))

    def sample_masks(self, leading: torch.Size, like: Tensor) -> RandomState:
        random_state = super().sample_masks(leading, like)
        if self.gate_dropout and self.training:
            width = (self.components - 1) * self.gate_dim
            random_state.masks["gate"] = sample_mask(
                leading, width, self.gate_dropout, self.locked_dropout, like
            )
        if self.training and self.gate_noise:
            random_state.noise_sd = self.gate_noise
            random_state.noise_seed = int(torch.randint(2**62, (), device="cpu"))
        return random_state

    def tensors(self) -> Named:
        tensors = super().tensors()
        for name in tensors.keys() & {"bias", "gate_bias"}:  # added to widened logits
            tensors[name] = widen(tensors[name])
        if (order := self.class_order) is not None:
            for name in tensors.keys() & {"weight", "bias"}:
                tensors[name] = tensors[name].index_select(0, order)
            places = torch.arange(len(order), device=order.device)
            tensors["place"] = torch.empty_like(order).scatter_(0, order, places)
        if self.gate_weight_norm and self.components > 1:
            raw = tensors["gate_hidden.weight"]
            normed = raw / widen(raw).norm(dim=-1, keepdim=True).to(raw.dtype)
            tensors["gate_hidden.weight"] = self.gate_weight_norm * normed
        return tensors

    def token_inputs(self, features: Tensor, tensors: Named, random_state: RandomState) -> Named:
        contexts_NKD = self.contexts(features, tensors, random_state)
        if self.components == 1:
            return {"contexts": contexts_NKD, "mixed": contexts_NKD.squeeze(1)}
        shared_NJ = widen(linear_of(features, tensors, "gate_shared"))  # u_k·g
        mixed_ND = self._mixed(contexts_NKD, shared_NJ)
        hidden = random_state.dropout("gate", linear_of(features, tensors, "gate_hidden").tanh())
        hidden_NJG = hidden.unflatten(-1, (-1, self.gate_dim))  # tanh(U_k g)
        return {
            "contexts": contexts_NKD, "mixed": mixed_ND, "shared": shared_NJ, "hidden": hidden_NJG,
        }  # fmt: skip

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

    def chunk_logits(self, features: Tensor, tensors: Named, random_state: RandomState) -> Tensor:
        inputs = self.token_inputs(features, tensors, random_state)
        # one split, because two slices would each pad their gradient to full size
        split = [self.frequent, self.num_classes - self.frequent]
        weight_SD, weight_RD = tensors["weight"].split(split)
        leaves_NKS = widen(linear(inputs["contexts"], weight_SD))
        frequent_NS = leaves_NKS.squeeze(1)
        if "hidden" in inputs:
            gates_NJS = self.class_gate_logits(inputs, tensors, random_state)
            frequent_NS = self._mean(leaves_NKS, gates_NJS)
        rare_NR = widen(linear(inputs["mixed"], weight_RD))
        logits_NM = torch.cat((frequent_NS, rare_NR), -1)
        bias = tensors.get("bias")
        return by_class(logits_NM if bias is None else logits_NM.add_(bias), tensors)

    def class_gate_logits(self, inputs: Named, tensors: Named, random_state: RandomState) -> Tensor:
        """Return l_{x,k} of the frequent classes [n, J, S], widened."""
        own_NJS = widen(linear(inputs["hidden"], tensors["gate_embed"]))
        gates_NJS = own_NJS.add_(inputs["shared"].unsqueeze(-1))
        if "gate_bias" in tensors:
            gates_NJS = gates_NJS.add_(tensors["gate_bias"].t())
        return random_state.add_noise(gates_NJS)

    def logit_vectors(self, features: Tensor, tensors: Named) -> Tensor:
        contexts_NKD = self.contexts(features, tensors, RandomState())
        return by_class(widen(linear(contexts_NKD, tensors["weight"])), tensors)

    def nll_of_logits(self, z: Tensor, target: Tensor, features: Tensor, tensors: Named) -> Tensor:
        inputs = self.token_inputs(features, tensors, RandomState())
        if self.class_order is not None:
            z, target = z.index_select(-1, self.class_order), tensors["place"][target]
        if self.components > 1:
            own_NJS = self.class_gate_logits(inputs, tensors, RandomState())
            shared_NJ1 = inputs["shared"].unsqueeze(-1)
            rare_NJR = shared_NJ1.expand(-1, -1, self.num_classes - self.frequent)
            z = self._mean(z, torch.cat((own_NJS, rare_NJR), -1)).unsqueeze(1)
        bias = tensors.get("bias")
        return super().nll_of_logits(z if bias is None else z + bias, target, features, tensors)

    def log_weights(self, features: Tensor, target: Tensor, tensors: Named) -> Tensor | None:
        if self.components == 1:
            return None
        inputs = self.token_inputs(features, tensors, RandomState())
        target = tensors["place"][target] if "place" in tensors else target
        logits_NJ = inputs["shared"]
        if self.frequent:
            row_N = target.clamp_max(self.frequent - 1)
            own_NJ = torch.einsum("nkg,ng->nk", inputs["hidden"], tensors["gate_embed"][row_N])
            own_NJ = widen(own_NJ) + logits_NJ
            if "gate_bias" in tensors:
                own_NJ = own_NJ + tensors["gate_bias"][row_N]
            logits_NJ = torch.where(target.unsqueeze(-1) < self.frequent, own_NJ, logits_NJ)
        return self._probabilities(logits_NJ.unsqueeze(-1).double()).squeeze(-1).log()

    def class_gates(self, features: Tensor, tensors: Named) -> Tensor | None:
        if self.components == 1:
            return None
        inputs = self.token_inputs(features, tensors, RandomState())
        own_NJS = self.class_gate_logits(inputs, tensors, RandomState())
        every_NJS = torch.cat((own_NJS, inputs["shared"].unsqueeze(-1)), -1)
        return self._probabilities(every_NJS.double())

    def _mean(self, leaves_NKS: Tensor, gates_NJS: Tensor) -> Tensor:
        """Return Σ_k π_k leaf_k [n, S], see `sigmoid_tree`."""
        return MEANS[self.gates](leaves_NKS, gates_NJS)

    def _probabilities(self, gates_NJS: Tensor) -> Tensor:
        """Return π [N, K, S] of gate logits."""
        count = gates_NJS.size(1) + 1
        # π_k is the mean of leaves that are 1 at k and 0 elsewhere
        leaves = torch.eye(count, dtype=gates_NJS.dtype, device=gates_NJS.device)
        shape = (len(gates_NJS), count, gates_NJS.size(-1))
        found = [self._mean(leaf.view(1, -1, 1).expand(shape), gates_NJS) for leaf in leaves]
        return torch.stack(found, 1)

    def floats_per_token(self) -> int:
        return 4 * self.num_classes + 6 * self.components * (self.frequent + self.embed_dim)


def by_class(values: Tensor, tensors: Named) -> Tensor:
    """Return values [..., M] in the order of class ids."""
    return values.index_select(-1, tensors["place"]) if "place" in tensors else values


def sigmoid_tree(leaves_NKS: Tensor, gates_NJS: Tensor) -> Tensor:
    """Return Σ_j π_j leaf_j [n, S], where π are the tree's probabilities.

    Each inner node takes the weighted mean of its two children, so that no gate probability is
    ever stored, and saturated gates lose nothing. Gate logits [N, J, 1] are those of all S values.
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
