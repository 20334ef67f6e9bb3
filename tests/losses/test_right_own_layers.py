"""Right layers of one's own pass the check, which changes nothing of its caller's."""

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, linear

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head, MixtureOfSoftmaxes, Softmax, register_pointwise
from highrank_plugins.heads.pointwise import Pointwise
from tests.losses.test_contract_of_own_layers import (
    F,
    M,
    Plain,
    StaleLoRA,
    features,
    fixed_seed,
    loss,
    plain,
)

__all__ = ["fixed_seed"]  # pytest finds the fixture by its name


class DroppedInTraining(Pointwise):
    def apply_to(self, z, tensors):
        return dropout(z, 0.1, self.training)


class Experts(Plain):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(F, F) for _ in range(32))

    def chunk_logits(self, x, tensors, random_state):
        chosen = [int(i) for i in (x[:, 0] * 7).abs().long() % 32]
        mixed = torch.stack([self.experts[i](row) for i, row in zip(chosen, x, strict=True)])
        return super().chunk_logits(mixed, tensors, random_state)


class InABall(Plain):
    """NaN where a feature has a norm of 1 or more."""

    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x / (1 - x.norm(dim=-1, keepdim=True)).sqrt(), tensors, None)


class Growing(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("ones", torch.ones(0), persistent=False)

    def chunk_logits(self, x, tensors, random_state):
        if len(self.ones) < len(x):
            self.ones = x.new_ones(len(x))
        return super().chunk_logits(x, tensors, random_state) * self.ones[: len(x), None]


class ReadsBuffer(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("k", torch.linspace(0.5, 2, M))

    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x, tensors, random_state) * self.k


class Probe(Plain):
    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x.detach(), tensors, random_state)


@pytest.mark.parametrize("cls", [Experts, InABall, Growing, ReadsBuffer, Probe, StaleLoRA])
def test_right_layers_pass(cls):
    head, x = cls().double(), features()
    if cls is StaleLoRA:
        head.stale = head.A, head.B  # a tuple that nobody reads
        head.chunk_logits = lambda x, tensors, state: linear(x, head.weight + head.B @ head.A)
    if cls is InABall:
        x = (0.98 * x / x.norm(dim=-1, keepdim=True)).detach().requires_grad_()
    earlier = plain(head, x)  # a graph that the check must not break
    found = loss(head, x)
    torch.testing.assert_close(found, earlier.detach())
    (earlier + found).backward()
    want = head.weight.grad.clone()
    head.zero_grad()
    (2 * plain(head, x)).backward()
    torch.testing.assert_close(head.weight.grad, want)


def test_dropout_in_training_alone_passes_both_modes():
    head, x = Softmax(M, F, pointwise=DroppedInTraining()).double(), features()
    loss(head, x).backward()
    with torch.no_grad():
        torch.testing.assert_close(loss(head.eval(), x), plain(head, x))


def test_a_layer_that_keeps_its_last_values_for_inspection_passes():
    class Kept(Plain):
        def chunk_logits(self, x, tensors, random_state):
            self.last = super().chunk_logits(x, tensors, random_state)
            return self.last

    head, x = Kept().double(), features()
    torch.testing.assert_close(loss(head, x), plain(head, x))


@pytest.mark.parametrize("thing", [3, "x", None, [1], nn.ReLU(), torch.relu])
def test_what_is_no_class_is_refused_and_not_kept(thing):
    for _ in range(2):
        with pytest.raises(UserError, match="is not a Pointwise; register a class"):
            register_pointwise("own_thing")(thing)


def test_errors_of_a_layer_name_its_class():
    class Asserts(Head):
        def chunk_log_probs(self, x, tensors, random_state):
            raise AssertionError("features must be sorted")

    with pytest.raises(UserError, match=r"^Asserts: AssertionError: features must be sorted$"):
        loss(Asserts(M, F).double(), features())


def test_mixtures_of_ours_are_unchanged_by_a_subclass_of_a_text_alone():
    class Named(MixtureOfSoftmaxes):
        def extra_repr(self):
            return "named"

    head, x = Named(M, F, components=3).double(), features()
    torch.testing.assert_close(loss(head, x, impl="fused"), plain(head, x))
