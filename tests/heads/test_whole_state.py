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


def plain(layer, drawn):
    layer.projection = drawn


def left_out(layer, drawn):
    layer.register_buffer("projection", drawn, persistent=False)


def by_python(layer, drawn):
    layer.projection = torch.eye(F) * random.random()


def buffer(layer, drawn):
    layer.register_buffer("projection", drawn)


def parameter(layer, drawn):
    layer.projection = nn.Parameter(drawn)


def constant(layer, drawn):
    layer.projection = torch.tril(torch.ones(F, F))


def build(cls):
    register_head("projected")(cls)
    try:
        return build_head("projected", num_classes=M, feature_dim=F)
    finally:
        HEADS.unregister("projected")


@pytest.mark.parametrize("keep", [plain, left_out, by_python])
def test_numbers_that_no_checkpoint_holds_are_refused(keep):
    with pytest.raises(UserError, match="Projected: built twice, with one state dictionary"):
        build(own(keep))


@pytest.mark.parametrize("keep", [buffer, parameter, constant])
def test_other_layers_are_built_as_ever(keep):
    torch.manual_seed(1)
    random.seed(1)
    layer, following, number = build(own(keep)), torch.rand(3), random.random()
    torch.manual_seed(1)
    random.seed(1)
    other = own(keep)(M, F)
    assert torch.equal(following, torch.rand(3)) and number == random.random()
    assert layer.training
    for name, value in layer.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])


def test_a_shared_matrix_keeps_its_numbers():
    embedding = nn.Embedding(M, F)
    before = embedding.weight.detach().clone()
    register_head("projected")(own(buffer))
    try:
        layer = build_head("projected", num_classes=M, feature_dim=F, weight=embedding.weight)
    finally:
        HEADS.unregister("projected")
    assert layer.weight is embedding.weight and torch.equal(embedding.weight, before)


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
