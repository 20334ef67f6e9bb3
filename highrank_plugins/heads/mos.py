"""Define Mixture of Softmaxes (Yang et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from highrank_plugins.heads.base import register_head
from highrank_plugins.heads.precision import below_largest, widen
from highrank_plugins.heads.prior_mixture import PriorMixture
from highrank_plugins.heads.random_state import ChunkRandomState
from highrank_plugins.losses.fused import FusedMixture


@register_head("mos")
class MixtureOfSoftmaxes(PriorMixture):
    """Compute lse_k [log π_k + log_softmax(f(W h_k + b))]   (Yang et al. 2018, eq. 2).

    With f = plif this is the MoS + PLIF of Ganea et al. 2019. K = 1 keeps the tanh layer: it is a
    MoC with K = 1, not a plain softmax. Options: see `PriorMixture`.
    """

    fused = FusedMixture

    def token_inputs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> dict[str, Tensor]:
        return {
            "contexts": self.contexts(features, tensors, random_state),
            "log_prior": self.log_prior(features, tensors),
        }

    def chunk_log_probs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        log_prior_NK = self.log_prior(features, tensors)
        values_NKM = self._values(features, tensors, random_state)
        return mix(log_prior_NK.unsqueeze(-1) + values_NKM.log_softmax(-1))

    def chunk_log_norms(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        return self._values(features, tensors, random_state).logsumexp(-1)

    def chunk_nll(
        self, features: Tensor, target: Tensor, tensors: dict[str, Tensor],
        random_state: ChunkRandomState, smooth: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if smooth:  # Σ_x log P_x does not decompose over components
            return super().chunk_nll(features, target, tensors, random_state, smooth)
        values_NKM = below_largest(self._values(features, tensors, random_state))
        index_NK1 = target.view(-1, 1, 1).expand(-1, self.components, 1)
        log_likelihood_NK = values_NKM.gather(-1, index_NK1).squeeze(-1) - values_NKM.logsumexp(-1)
        return -mix(self.log_prior(features, tensors) + log_likelihood_NK), None

    def _values(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        """Return f(W h_k + b) [n, K, M], at least float32."""
        contexts_NKD = self.contexts(features, tensors, random_state)
        logits_NKM = linear(contexts_NKD, tensors["weight"], tensors.get("bias"))
        return self.apply_pointwise(logits_NKM, tensors)

    def logit_vectors(self, features: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        contexts_NKD = self.contexts(features, tensors, ChunkRandomState())
        return widen(linear(contexts_NKD, tensors["weight"], tensors.get("bias")))

    def nll_of_logits(
        self, z: Tensor, target: Tensor, features: Tensor, tensors: dict[str, Tensor]
    ) -> Tensor:
        index_NK1 = target.view(-1, 1, 1).expand(-1, self.components, 1)
        log_likelihood_NK1 = self.apply_pointwise(z, tensors).log_softmax(-1).gather(-1, index_NK1)
        return -mix(self.log_prior(features, tensors) + log_likelihood_NK1.squeeze(-1))

    def products(self, tokens: int) -> list[tuple[int, int, int]]:
        softmaxes = (tokens * self.components, self.embed_dim, self.num_classes)
        return [*self._mixing_products(tokens), softmaxes]

    def floats_per_token(self) -> int:
        return 4 * self.components * self.num_classes


def mix(log_joint: Tensor) -> Tensor:
    """Return the log-sum-exp over components, dimension 1.

    Where a bias of −∞ rules a class out in every component, it is −∞ and has gradients of 0. Those
    of `torch.logsumexp` are NaN there.
    """
    least = torch.finfo(log_joint.dtype).min
    mixed = log_joint.clamp_min(least).logsumexp(1)
    return mixed.masked_fill(mixed == least, -torch.inf)
