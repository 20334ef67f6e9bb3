"""Define heads with one softmax per token, and the plain softmax, alone or with a function."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor
from torch.nn.functional import linear

from highrank_plugins.heads.base import Head, register_head
from highrank_plugins.heads.checks import below_largest, widen
from highrank_plugins.heads.inheritance import OF_LOGITS, restore
from highrank_plugins.heads.random_state import ChunkRandomState
from highrank_plugins.losses.softmax import FusedLogits


class LogitHead(Head):
    """Compute log P = log_softmax(f(z)); a subclass defines z."""

    has_logits = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        restore(cls, OF_LOGITS, LogitHead, "chunk_logits")

    @abstractmethod
    def chunk_logits(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        """Return logits z [n, M] of features [n, F], before the pointwise function."""
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        tensors = self.tensors()
        return self.apply_pointwise(
            self.chunk_logits(features, tensors, ChunkRandomState()), tensors
        )

    def logit_vectors(self, features: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return widen(self.chunk_logits(features, tensors, ChunkRandomState())).unsqueeze(1)

    def nll_of_logits(
        self, z: Tensor, target: Tensor, features: Tensor, tensors: dict[str, Tensor]
    ) -> Tensor:
        return super().nll_of_logits(self.apply_pointwise(z, tensors), target, features, tensors)

    def chunk_log_probs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        logits_NM = self.chunk_logits(features, tensors, random_state)
        return self.apply_pointwise(logits_NM, tensors).log_softmax(-1)

    def chunk_log_norms(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        logits_NM = self.chunk_logits(features, tensors, random_state)
        return self.apply_pointwise(logits_NM, tensors).logsumexp(-1, keepdim=True)

    def chunk_nll(
        self, features: Tensor, target: Tensor, tensors: dict[str, Tensor],
        random_state: ChunkRandomState, smooth: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        # nll = lse(f) − f_y and Σ_x −log P_x = M lse − Σ f: autograd keeps one [n, M]
        logits_NM = self.chunk_logits(features, tensors, random_state)
        values_NM = below_largest(self.apply_pointwise(logits_NM, tensors))
        log_norm_N = values_NM.logsumexp(-1)
        nll_N = log_norm_N - values_NM.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        if not smooth:
            return nll_N, None
        return nll_N, self.num_classes * (log_norm_N - values_NM.mean(-1))


@register_head("softmax")
class Softmax(LogitHead):
    """Compute log_softmax(f(W g + b)); f = gss, sigsoftmax or plif gives those papers' layers.

    Args: as `Head`; embed_dim must equal feature_dim.
    Raises:
        ValueError: embed_dim ≠ feature_dim.
    """

    fused = FusedLogits
    linear_logits = True

    def check_sizes(self) -> None:
        if self.embed_dim != self.feature_dim:
            raise ValueError(
                f"softmax: embed_dim ({self.embed_dim}), the width of the vocabulary matrix, must "
                f"equal feature_dim ({self.feature_dim}), that of the features; moc, mos and "
                "mixtape map features to embeddings of another size"
            )

    def token_inputs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> dict[str, Tensor]:
        return {"contexts": features}

    def chunk_logits(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        return linear(features, tensors["weight"], tensors.get("bias"))
