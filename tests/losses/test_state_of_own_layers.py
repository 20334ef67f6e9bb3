"""A layer of one's own that changes after its first loss is checked again, without traces."""

import functools
import math
from collections import UserDict
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import MixtureOfSoftmaxes, Softmax
from highrank_plugins.heads.pointwise import Softcap
from highrank_plugins.losses.softmaxes import FusedLogits
from tests.losses.own_functions import Normed
from tests.losses.own_structures import (
    DroppedFeatures,
    Plain,
    calling,
    made,
    structure,
    with_adapter,
)
from tests.losses.test_own_layers import SIZE, TARGET, by_loss, by_plain_torch, features, fixed_seed

__all__ = ["fixed_seed"]  # pytest finds the fixture by its name


# -- the check leaves a layer as it was -------------------------------------------------------


def in_dict(self):
    return self.kept.setdefault("norm", self.weight.detach().norm())


def in_list(self):
    if not self.kept:
        self.kept.append(self.weight.detach().norm())
    return self.kept[0]


class Holder:
    norm = None


def in_object(self):
    if self.kept.norm is None:
        self.kept.norm = self.weight.detach().norm()
    return self.kept.norm


@functools.lru_cache
def in_cache(self):
    return self.weight.detach().norm()


KEPT = [
    (in_dict, dict), (in_dict, UserDict), (in_list, list), (in_cache, dict),
    (in_object, Holder), (in_object, lambda: SimpleNamespace(norm=None)),
]  # fmt: skip


@pytest.mark.parametrize(("norm", "kept"), KEPT)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_the_check_leaves_no_numbers_behind(norm, kept, impl):
    parts = {"kept": kept, "best": lambda: math.nan}
    cls = structure(lambda self, x: x / self.norm(), parts=parts, norm=norm)
    head, x = cls().double(), features()
    found = by_loss(head, x, impl)
    torch.testing.assert_close(head.norm(), head.weight.detach().norm())
    torch.testing.assert_close(found, by_plain_torch(head, x))


def test_the_check_leaves_random_numbers_and_buffers_as_they_were():
    found = []
    for checked in (False, True):
        head = made(DroppedFeatures)().double()
        if checked:
            by_loss(head, features())
        torch.manual_seed(3)
        head.nll(features(seed=1), TARGET, impl="auto").loss.sum().backward()
        found.append((torch.get_rng_state(), torch.rand(1).item()))
    assert found[0][0].equal(found[1][0])


# -- changed after the first loss -------------------------------------------------------------


class Optional(Plain):
    def __init__(self):
        super().__init__()
        self.options, self.temperature = {"norm": False}, 1.0
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def read(self, x):
        return x / x.std() if self.options["norm"] or self.step > 0 else x


class OnlyNll(Plain):
    def chunk_nll(self, x, target, tensors, random_state, smooth):
        log_probs = self.chunk_log_probs(x, tensors, random_state)
        nll = -log_probs.gather(-1, target[:, None])[:, 0]
        return nll, -log_probs.mean(-1) if smooth else None


def normed_function():
    head = made(Softmax, pointwise=Normed())().eval()
    head.pointwise.norm.running_var.fill_(2.0)
    return head


def normed_features():
    head = structure(lambda self, x: self.norm(x), parts={"norm": lambda: nn.BatchNorm1d(SIZE)})()
    head.norm.eval()
    return head


def after_many_values(head):
    for step in range(20):
        head.temperature = 1 / (1 + step)
        by_loss(head, features())
    head.options["norm"] = True


def by_class(head):
    type(head).chunk_logits = lambda self, x, t, r: Plain.chunk_logits(self, x - x.mean(0), t, r)


def to_double(head):
    with_adapter(head)
    head.double()


@pytest.mark.parametrize(("build", "change", "first", "later", "said"), [
    *((lambda: type("Own", (Optional,), {})(), change, {}, {}, "Own") for change in (
        lambda head: head.options.update(norm=True),
        lambda head: head.step.add_(1),
        lambda head: head.register_forward_hook(lambda m, x, out: (2 * out).log_softmax(-1)),
        lambda head: head.register_full_backward_pre_hook(lambda m, grads: (10 * grads[0],)),
        after_many_values, by_class)),
    (structure(lambda self, x: x + self.gate * x.mean(0), gate=0.0),
     lambda head: setattr(head, "gate", 1.0), {}, {}, "Own"),
    (OnlyNll, None, {}, {"label_smoothing": 0.1}, "OnlyNll"),
    (calling("chunk_nll", lambda self, found: (0.5 * found[0], None)), None,
     {"accuracy": True}, {}, "Own"),
    (made(MixtureOfSoftmaxes, components=3), to_double, {}, {}, "never calls latent"),
    (normed_function, nn.Module.train, {}, {}, "elementwise"),
    (normed_features, lambda head: head.norm.train(), {}, {}, "Own"),
])  # fmt: skip
def test_each_new_state_and_way_of_computing_is_checked(build, change, first, later, said):
    head, x = build().double(), features()
    by_loss(head, x, **first)
    if change is not None:
        change(head)
    with pytest.raises(UserError, match=said):
        by_loss(head, x, **later)


def patch(head):
    head.chunk_logits = lambda x, tensors, random_state: 0.5 * linear(x, tensors["weight"])


def patch_by_object(head):
    head.chunk_logits = Mock(side_effect=lambda *given, own=head.chunk_logits: 0.5 * own(*given))


@pytest.mark.parametrize("change", [patch, patch_by_object])
def test_a_method_that_is_replaced_later_counts(change):
    head, x = made(Softmax)().double(), features()
    by_loss(head, x)
    change(head)
    torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))


@pytest.mark.parametrize(("cls", "name"), [(Softcap, "apply_to"), (Softmax, "chunk_logits")])
def test_a_method_replaced_in_a_class_of_ours_counts(cls, name, monkeypatch):
    head, x = made(Softmax, pointwise=Softcap(cap=3.0))().double(), features()
    by_loss(head, x)
    old = getattr(cls, name)
    monkeypatch.setattr(cls, name, lambda *inputs: 0.5 * old(*inputs))
    torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))
    with pytest.raises(UserError, match="with impl='fused'"):
        by_loss(head, x, "fused")


def test_a_choice_of_auto_holds_for_auto_alone():
    class Wrong(Softmax):
        fused = FusedLogits

        def chunk_logits(self, x, tensors, random_state):
            return 2 * super().chunk_logits(x, tensors, random_state)

    head, x = made(Wrong)().double(), features()
    torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))
    for options in ({"impl": "fused"}, {"filter_gradients": True}):
        with pytest.raises(UserError, match="Wrong"):
            by_loss(head, x, **options)


def test_generation_prepares_nothing_for_an_own_layer():
    class Cooled(Plain):
        temperature = 1.0

        def tensors(self):
            return {**super().tensors(), "weight": self.weight / self.temperature}

    head, x = Cooled().double().eval(), features()
    with torch.no_grad():
        by_loss(head, x)
        head(x)
        head.temperature = 5.0
        torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))
