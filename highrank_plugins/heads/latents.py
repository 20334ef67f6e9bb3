"""Compute the K context vectors that every mixture shares."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from highrank_plugins.heads.checks import integer, positive, probability
from highrank_plugins.heads.command_line import CommandLine
from highrank_plugins.heads.random_state import ChunkRandomState, RandomState, sample_mask


class Latents(CommandLine, nn.Module):
    """Add h_k = s·tanh(A_k g + a_k), dropped out, to a mixture head; the papers have s = 1.

    `latent.weight` is [K·D, F], component-major: rows k·D..(k+1)·D−1 are A_k; `latent.bias` [K·D].

    A scale s is equivalent to the papers' head with the vocabulary matrix s·W. Use it if W is also
    the embedding and starts with rows of norm 1, as in fairseq. The tanh bounds the logits, which
    the features of a softmax do not, so W would first have to grow by the factor s.
    """

    # the trunk decides whether the mask is locked
    set_by: ClassVar = {"locked_dropout": None}
    option_help: ClassVar = {
        "components": "number of mixture components K; mixtape: a power of two",
        "context_scale": "s of the contexts h_k = s*tanh(A_k g + a_k); with shared embeddings the "
        "papers' 1 learns slowly",
        "dropout": "dropout on the context vectors h_k",
    }

    components: int
    feature_dim: int
    embed_dim: int
    context_scale: float
    dropout: float
    locked_dropout: bool
    retain_dropout: bool
    latent: nn.Linear

    def make_latents(
        self, components: int, context_scale: float, dropout: float, locked_dropout: bool
    ) -> None:
        """Create options and parameters; called by the constructor of a mixture.

        Raises:
            ValueError: components < 1, context_scale not above 0, dropout outside [0, 1).
        """
        self.components = integer("components", components)
        self.context_scale = positive("context_scale", context_scale)
        self.dropout = probability("dropout", dropout)
        self.locked_dropout = bool(locked_dropout)
        self.latent = nn.Linear(self.feature_dim, components * self.embed_dim)

    def sample_masks(self, leading: torch.Size, like: Tensor) -> RandomState:
        """Return a mask of K·D units per token, or per column of a time-major batch if locked."""
        random_state = RandomState()
        if self.dropout and (self.training or self.retain_dropout):
            width = self.components * self.embed_dim
            random_state.masks["latent"] = sample_mask(
                leading, width, self.dropout, self.locked_dropout, like
            )
        return random_state

    def token_floats(self) -> int:
        """Count the contexts before and after scale and dropout, and their gradients."""
        copies = 2 if self.context_scale == 1 else 3
        return 2 * copies * self.components * self.embed_dim

    def contexts(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        """Return h [n, K, D] of features [n, F]."""
        h = linear(features, tensors["latent.weight"], tensors["latent.bias"]).tanh()
        if self.context_scale != 1:
            h = self.context_scale * h
        return random_state.dropout("latent", h).unflatten(-1, (self.components, self.embed_dim))
