"""A structure and a pointwise function that the package does not have."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from highrank_plugins.heads import HEADS, POINTWISE, Head, Pointwise


class Residual(Head):
    """Return logits W (g + tanh(A g)) + b."""

    def __init__(self, num_classes, feature_dim, embed_dim=None, weight=None, bias=True,
                 pointwise="identity", inner_bias=True):  # fmt: skip
        super().__init__(num_classes, feature_dim, embed_dim, weight, bias, pointwise)
        self.inner = nn.Linear(feature_dim, feature_dim, bias=inner_bias)

    def chunk_logits(self, features, tensors, random_state):
        inner = linear(features, tensors["inner.weight"], tensors.get("inner.bias")).tanh()
        return linear(features + inner, tensors["weight"], tensors.get("bias"))


class Bend(Pointwise):
    """Apply f(z) = z + a tanh(z) with a learnt."""

    def __init__(self, start: float = 0.5) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(float(start)))

    def apply_to(self, z, tensors):
        return z + tensors["a"].to(z.dtype) * z.tanh()


TOYS = [(HEADS, "residual", Residual), (POINTWISE, "bend", Bend)]


@pytest.fixture
def toys(monkeypatch):
    """Register both toys for one test, without fairseq's architectures and options."""
    for registry, name, cls in TOYS:
        monkeypatch.setattr(registry, "_listeners", [])
        registry.register(name)(cls)
    yield
    for registry, name, _ in TOYS:
        registry.unregister(name)
