"""The K context vectors that every mixture shares."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from .checks import integer, probability
from .draws import ChunkDraws, Draws, draw_mask


class Latents(nn.Module):
    """Mixin of mixture heads: h_k = tanh(A_k g + a_k), dropped out.

    `latent.weight` is [K·D, F], component-major: rows k·D..(k+1)·D−1 are A_k; `latent.bias` [K·D].
    """

    components: int
    feature_dim: int
    embed_dim: int
    dropout: float
    locked_dropout: bool
    retain_dropout: bool
    latent: nn.Linear

    def make_latents(self, components: int, dropout: float, locked_dropout: bool) -> None:
        """Options and parameters; called by the constructor of a mixture.

        Raises:
            ValueError: components < 1, dropout outside [0, 1).
        """
        self.components = integer("components", components)
        self.dropout = probability("dropout", dropout)
        self.locked_dropout = bool(locked_dropout)
        self.latent = nn.Linear(self.feature_dim, components * self.embed_dim)

    def draw(self, leading: torch.Size, like: Tensor) -> Draws:
        """One mask of K·D units per token, or per column of a time-major batch when locked."""
        draws = Draws()
        if self.dropout and (self.training or self.retain_dropout):
            width = self.components * self.embed_dim
            draws.masks["latent"] = draw_mask(
                leading, width, self.dropout, self.locked_dropout, like
            )
        return draws

    def token_floats(self) -> int:
        """As `Head.token_floats`: the contexts, before and after dropout, and as many gradients."""
        return 4 * self.components * self.embed_dim

    def contexts(self, features: Tensor, tensors: dict[str, Tensor], draws: ChunkDraws) -> Tensor:
        """h [n, K, D] of features [n, F]."""
        h = linear(features, tensors["latent.weight"], tensors["latent.bias"]).tanh()
        return draws.dropout("latent", h).unflatten(-1, (self.components, self.embed_dim))
