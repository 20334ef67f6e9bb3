"""Define the plain softmax layer, alone or with a pointwise function."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear

from highrank_plugins.heads.base import Head, register_head
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.losses.fused import FusedLogits
from highrank_plugins.losses.plan import Named


@register_head("softmax")
class Softmax(Head):
    """Compute log_softmax(f(W g + b)); f = gss, sigsoftmax or plif gives those papers' layers.

    Args: as `Head`; embed_dim must equal feature_dim.
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

    def token_inputs(self, features: Tensor, tensors: Named, random_state: RandomState) -> Named:
        return {"contexts": features}

    def chunk_logits(self, features: Tensor, tensors: Named, random_state: RandomState) -> Tensor:
        return linear(features, tensors["weight"], tensors.get("bias"))
