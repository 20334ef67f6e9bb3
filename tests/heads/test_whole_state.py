"""What a constructor draws must be in the state dictionary, or a checkpoint is another model."""

import random

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import HEADS, Head, Pointwise, build_head, register_head
from highrank_plugins.heads.pointwise import POINTWISE, register_pointwise

M, F = 20, 6


@pytest.fixture(autouse=True)
def without_architectures(monkeypatch):
    """Register no architectures of fairseq: other tests list them."""
    for registry in (HEADS, POINTWISE):
        monkeypatch.setattr(registry, "_listeners", [])


def own(keep):
    """Return a structure whose constructor draws a projection, which `keep` stores."""

    class Projected(Head):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            keep(self, torch.randn(F, F))

        def chunk_logits(self, features, tensors, random_state):
            return linear(features @ self.projection, self.weight, self.bias)

    return Projected


LOST = [
    lambda layer, drawn: setattr(layer, "projection", drawn),
    lambda layer, drawn: layer.register_buffer("projection", drawn, persistent=False),
    lambda layer, drawn: setattr(layer, "projection", torch.eye(F) * random.random()),
]
KEPT = [
    lambda layer, drawn: layer.register_buffer("projection", drawn),
    lambda layer, drawn: setattr(layer, "projection", nn.Parameter(drawn)),
    lambda layer, drawn: setattr(layer, "projection", torch.tril(torch.ones(F, F))),
]


def build(cls, **options):
    register_head("projected")(cls)
    try:
        return build_head("projected", num_classes=M, feature_dim=F, **options)
    finally:
        HEADS.unregister("projected")


@pytest.mark.parametrize("keep", LOST)
def test_numbers_that_no_checkpoint_holds_are_refused(keep):
    with pytest.raises(UserError, match="Projected: built twice, with one state dictionary"):
        build(own(keep))


@pytest.mark.parametrize("keep", KEPT)
def test_other_layers_are_built_as_ever(keep):
    """A shared matrix keeps its numbers, and the next random numbers are as without the check."""
    found, embedding = [], nn.Embedding(M, F)
    before = embedding.weight.detach().clone()
    for make in (build, lambda cls, weight: cls(M, F, weight=weight)):
        torch.manual_seed(1)
        random.seed(1)
        layer = make(own(keep), weight=embedding.weight)
        assert layer.training and layer.weight is embedding.weight
        assert torch.equal(embedding.weight, before)
        layer.states_function = False  # one of the two is registered
        found.append([*layer.state_dict().values(), torch.rand(3), torch.tensor(random.random())])
    assert all(map(torch.equal, *found))


def test_a_function_is_checked_too():
    class Random(Pointwise):
        def __init__(self):
            super().__init__()
            self.a = random.random()

        def apply_to(self, z, tensors):
            return z + self.a * z.tanh()

    register_pointwise("random")(Random)
    try:
        with pytest.raises(UserError, match="Random: built twice"):
            build_head("softmax", num_classes=M, feature_dim=F, pointwise="random")
    finally:
        POINTWISE.unregister("random")
