"""A structure that the package does not have: logits W (g + tanh(A g)) + b."""

from torch import nn
from torch.nn.functional import linear

from highrank_plugins.heads import Head, register_head


@register_head("residual")
class Residual(Head):
    def __init__(self, num_classes, feature_dim, embed_dim=None, weight=None, bias=True,
                 pointwise="identity", inner_bias=True):  # fmt: skip
        super().__init__(num_classes, feature_dim, embed_dim, weight, bias, pointwise)
        self.inner = nn.Linear(feature_dim, feature_dim, bias=inner_bias)

    def chunk_logits(self, features, tensors, random_state):
        inner = linear(features, tensors["inner.weight"], tensors.get("inner.bias")).tanh()
        return linear(features + inner, tensors["weight"], tensors.get("bias"))
