"""Define Mixture of Contexts (Yang et al. 2018)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from highrank_plugins.heads.base import register_head
from highrank_plugins.heads.logit_head import LogitHead
from highrank_plugins.heads.precision import widen
from highrank_plugins.heads.prior_mixture import PriorMixture
from highrank_plugins.heads.random_state import ChunkRandomState
from highrank_plugins.losses.fused import FusedLogits


@register_head("moc")
class MixtureOfContexts(PriorMixture, LogitHead):
    """Compute log_softmax(f(W Σ_k π_k h_k + b))   (Yang et al. 2018, section 3.1).

    It has one softmax, so its rank is bounded like a plain softmax's. Options: see `PriorMixture`.
    """

    fused = FusedLogits

    def token_inputs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> dict[str, Tensor]:
        prior_NK = self.log_prior(features, tensors).exp()
        contexts_NKD = self.contexts(features, tensors, random_state)
        # no matrix product, because autocast would run it in half precision
        mixed_ND = (prior_NK.unsqueeze(-1) * widen(contexts_NKD)).sum(1).to(contexts_NKD.dtype)
        return {"contexts": mixed_ND}

    def chunk_logits(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        mixed_ND = self.token_inputs(features, tensors, random_state)["contexts"]
        return linear(mixed_ND, tensors["weight"], tensors.get("bias"))

    def products(self, tokens: int) -> list[tuple[int, int, int]]:
        return [*self._mixing_products(tokens), (tokens, self.embed_dim, self.num_classes)]

    def floats_per_token(self) -> int:
        return super().floats_per_token() + 4 * self.components * self.embed_dim
