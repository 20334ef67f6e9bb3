"""Compute the K context vectors that every mixture shares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import Head, register_head
from highrank_plugins.heads.checks import POSITIVE, RATE, boolean, integer, number
from highrank_plugins.heads.log_probs import widen
from highrank_plugins.heads.pointwise import Pointwise
from highrank_plugins.heads.random_state import RandomState, sample_mask
from highrank_plugins.losses.autograd import linear_of
from highrank_plugins.losses.fused import FusedLogits, FusedMixture
from highrank_plugins.losses.plan import Named

FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)  # of the largest feature: the context scales that are tried


class Mixture(Head):
    """Mix K contexts h_k = s·tanh(A_k g + a_k), dropped out; the papers have s = 1.

    `latent.weight` is [K·D, F], component-major: rows k·D..(k+1)·D−1 are A_k; `latent.bias` [K·D].
    The prior is π = softmax(Π g); `prior.weight` [K, F] holds Π, without bias.

    A scale s is equivalent to the papers' head with the vocabulary matrix s·W. Use it if W is also
    the embedding and starts with rows of norm 1, as in fairseq. The tanh bounds the logits, which
    the features of a softmax do not, so W would first have to grow by the factor s.

    Args:
        components: number of components K; for a Mixtape's tree a power of two.
        context_scale: s > 0 of the contexts; with shared embeddings the papers' 1 learns slowly.
        dropout: dropout on the contexts h_k.
        locked_dropout: one mask for all time steps of time-major features [T, B, F].
        num_classes, feature_dim, embed_dim, weight, bias, pointwise: as `Head`.
    """

    constants: tuple[str, ...] | None = ("context_scale",)
    no_options: tuple[str, ...] = ("locked_dropout",)
    has_prior: ClassVar[bool] = True  # whether π is the same for all classes

    def __init__(
        self, num_classes: int, feature_dim: int, embed_dim: int | None = None,
        weight: nn.Parameter | None = None, bias: bool = True,
        pointwise: str | Pointwise = "identity",
        components: int = 15, context_scale: float = 1.0,
        dropout: float = 0.0, locked_dropout: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(num_classes, feature_dim, embed_dim, weight, bias, pointwise)
        self.components = integer("components", components)
        self.context_scale = number("context_scale", context_scale, POSITIVE)
        self.dropout = number("dropout", dropout, RATE)
        self.locked_dropout = boolean("locked_dropout", locked_dropout)
        self.latent = nn.Linear(self.feature_dim, components * self.embed_dim)
        if self.has_prior:
            self.prior = nn.Linear(feature_dim, components, bias=False)

    def reset_parameters(self, submodules: bool = True) -> None:
        super().reset_parameters(submodules)
        if submodules:
            self.latent.reset_parameters()
            if self.has_prior:
                self.prior.reset_parameters()

    def sample_masks(self, leading: torch.Size, like: Tensor) -> RandomState:
        """Return a mask of K·D units per token, or per column of a time-major batch if locked."""
        random_state = RandomState()
        if self.dropout and self.training:
            width = self.components * self.embed_dim
            random_state.masks["latent"] = sample_mask(
                leading, width, self.dropout, self.locked_dropout, like
            )
        return random_state

    def token_floats(self) -> int:
        """Count the contexts before and after scale and dropout, and their gradients."""
        copies = 2 if self.context_scale == 1 else 3
        return 2 * copies * self.components * self.embed_dim

    def contexts(self, features: Tensor, tensors: Named, random_state: RandomState) -> Tensor:
        """Return h [n, K, D] of features [n, F]."""
        h = linear_of(features, tensors, "latent").tanh()
        if self.context_scale != 1:
            h = self.context_scale * h
        return random_state.dropout("latent", h).unflatten(-1, (self.components, self.embed_dim))

    def log_weights(self, features: Tensor, target: Tensor, tensors: Named) -> Tensor | None:
        return self.log_prior(features, tensors)

    def log_prior(self, features: Tensor, tensors: Named) -> Tensor:
        return widen(linear_of(features, tensors, "prior")).log_softmax(-1)


def near_features(layer: Mixture, largest: float, noise: float) -> Iterator[float]:
    """Set contexts h_k = s tanh((I + noise) g / s) ≈ g, and yield s, from the least one."""
    size, count = layer.embed_dim, layer.components
    if noise <= 0 and layer.mixes and count > 1:
        raise UserError("start='lm_head': noise=0 leaves the components equal for ever; set 0.02")
    drawn = torch.randn(count * size, size) * noise / math.sqrt(size)
    contexts = (torch.eye(size).repeat(count, 1) + drawn).to(layer.latent.weight)
    for name, parameter in layer.named_parameters():
        if name.startswith(("prior", "gate_shared", "gate_hidden.bias", "latent.bias")):
            parameter.zero_()
    for factor in FACTORS:
        layer.context_scale = factor * largest
        layer.latent.weight.copy_(contexts / layer.context_scale)
        yield layer.context_scale


@register_head("mos")
class MixtureOfSoftmaxes(Mixture):
    """Compute lse_k [log π_k + log_softmax(f(W h_k + b))]   (Yang et al. 2018, eq. 2).

    With f = plif this is the MoS + PLIF of Ganea et al. 2019. K = 1 keeps the tanh layer: it is a
    MoC with K = 1, not a plain softmax. Options: see `Mixture`.
    """

    fused = FusedMixture
    mixes = True

    def token_inputs(self, features: Tensor, tensors: Named, random_state: RandomState) -> Named:
        return {
            "contexts": self.contexts(features, tensors, random_state),
            "log_prior": self.log_prior(features, tensors),
        }

    def chunk_logits(self, features: Tensor, tensors: Named, random_state: RandomState) -> Tensor:
        contexts_NKD = self.contexts(features, tensors, random_state)
        return linear(contexts_NKD, tensors["weight"], tensors.get("bias"))

    def floats_per_token(self) -> int:
        return 4 * self.components * self.num_classes


@register_head("moc")
class MixtureOfContexts(Mixture):
    """Compute log_softmax(f(W Σ_k π_k h_k + b))   (Yang et al. 2018, section 3.1).

    It has one softmax, so its rank is bounded like a plain softmax's. Options: see `Mixture`.
    """

    fused = FusedLogits

    def token_inputs(self, features: Tensor, tensors: Named, random_state: RandomState) -> Named:
        prior_NK = self.log_prior(features, tensors).exp()
        contexts_NKD = self.contexts(features, tensors, random_state)
        # no matrix product, because autocast would run it in half precision
        mixed_ND = (prior_NK.unsqueeze(-1) * widen(contexts_NKD)).sum(1).to(contexts_NKD.dtype)
        return {"contexts": mixed_ND}

    def chunk_logits(self, features: Tensor, tensors: Named, random_state: RandomState) -> Tensor:
        mixed_ND = self.token_inputs(features, tensors, random_state)["contexts"]
        return linear(mixed_ND, tensors["weight"], tensors.get("bias"))

    def floats_per_token(self) -> int:
        return super().floats_per_token() + 4 * self.components * self.embed_dim
