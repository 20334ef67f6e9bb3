"""A layer of one's own that changes after its first loss is checked again, without traces."""

import functools
import math
import operator
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import MixtureOfSoftmaxes, Softmax
from highrank_plugins.heads.pointwise import Softcap
from highrank_plugins.losses.fused import FusedLogits
from tests.losses.own_functions import TARGET, Normed, calling, define
from tests.losses.own_structures import DroppedFeatures, Plain, made, reading, with_adapter
from tests.losses.test_own_layers import by_loss, by_plain_torch, features, fixed_seed

__all__ = ["fixed_seed"]  # pytest finds the fixture by its name


# -- the check leaves a layer as it was -------------------------------------------------------


class Holder:
    norm = None


def in_closure():
    kept = None

    def norm(new=None):
        nonlocal kept
        kept = kept if new is None else new
        return kept

    return norm


@functools.lru_cache
def in_cache(self):
    return self.weight.detach().norm()


def once(get, put):
    """Return a method that computes a norm in its first call, and keeps it for all others."""

    def norm(self):
        if get(self) is None:
            put(self, self.weight.detach().norm().item())
        return get(self)

    return norm


in_attribute = once(
    lambda s: getattr(s.kept, "norm", None), lambda s, v: setattr(s.kept, "norm", v)
)
in_item = once(lambda s: s.kept.get("norm"), lambda s, v: operator.setitem(s.kept, "norm", v))
in_list = once(lambda s: s.kept[0] if s.kept else None, lambda s, v: s.kept.append(v))
in_function = once(lambda s: s.kept(), lambda s, v: s.kept(v))
in_class = once(lambda s: type(s).norms, lambda s, v: setattr(type(s), "norms", v))
KEPT = [
    (in_attribute, Holder), (in_item, dict), (in_list, list), (in_function, in_closure),
    (in_class, dict), (in_cache, dict),
]  # fmt: skip


@pytest.mark.parametrize(("norm", "kept"), KEPT)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_the_check_leaves_no_numbers_behind(norm, kept, impl):
    parts = {"kept": kept, "best": lambda: math.nan}
    cls = reading(lambda self, x: x / self.norm(), parts, norm=norm, norms=None)
    head, x = cls().double(), features()
    found = by_loss(head, x, impl)
    torch.testing.assert_close(torch.as_tensor(head.norm()).double(), head.weight.detach().norm())
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


def optional():
    """Return a layer of a class of its own, with an option, a number and a step in a buffer."""

    def read(self, x):
        return x / x.std() if self.options["norm"] or self.step > 0 else x

    parts = {"options": lambda: {"norm": False}, "step": lambda: torch.zeros((), dtype=torch.long)}
    return reading(read, parts, temperature=1.0)()


def only_nll(self, x, target, tensors, random_state, smooth):
    log_probs = self.chunk_log_probs(x, tensors, random_state)
    nll = -log_probs.gather(-1, target[:, None])[:, 0]
    return nll, -log_probs.mean(-1) if smooth else None


def normed_function():
    head = made(Softmax, pointwise=Normed())().eval()
    head.pointwise.norm.running_var.fill_(2.0)
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
    *((optional, change, {}, {}, "Own") for change in (
        lambda head: head.options.update(norm=True),
        lambda head: head.step.add_(1),
        lambda head: head.register_forward_hook(lambda m, x, out: (2 * out).log_softmax(-1)),
        lambda head: head.register_full_backward_pre_hook(lambda m, grads: (10 * grads[0],)),
        after_many_values, by_class)),
    (reading(lambda self, x: x + self.gate * x.mean(0), gate=0.0),
     lambda head: setattr(head, "gate", 1.0), {}, {}, "Own"),
    (define(Plain, chunk_nll=only_nll), None, {}, {"label_smoothing": 0.1}, "Own"),
    (calling("chunk_nll", lambda self, found, *_: (0.5 * found[0], None), Plain), None,
     {"accuracy": True}, {}, "Own"),
    (made(MixtureOfSoftmaxes, components=3), to_double, {}, {}, "never calls latent"),
    (normed_function, nn.Module.train, {}, {}, "elementwise"),
])  # fmt: skip
def test_each_new_state_and_way_of_computing_is_checked(build, change, first, later, said):
    head, x = build().double(), features()
    by_loss(head, x, **first)
    if change is not None:
        change(head)
    with pytest.raises(UserError, match=said):
        by_loss(head, x, **later)


def patch_class(cls, name):
    def patch(head, monkeypatch):
        old = getattr(cls, name)
        monkeypatch.setattr(cls, name, lambda *inputs: 0.5 * old(*inputs))

    return patch


@pytest.mark.parametrize("change", [
    lambda head, patch: patch.setattr(
        head, "chunk_logits", lambda x, tensors, state: 0.5 * linear(x, tensors["weight"])),
    lambda head, patch: patch.setattr(head, "chunk_logits", Mock(
        side_effect=lambda *given, own=head.chunk_logits: 0.5 * own(*given))),
    patch_class(Softcap, "apply_to"), patch_class(Softmax, "chunk_logits"),
])  # fmt: skip
def test_a_method_that_is_replaced_later_counts(change, monkeypatch):
    """Replace a method of an object, or of a class of ours, once its loss was computed."""
    head, x = made(Softmax, pointwise=Softcap(cap=3.0))().double(), features()
    by_loss(head, x)
    change(head, monkeypatch)
    torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))
    with pytest.raises(UserError, match="with impl='fused'"):
        by_loss(head, x, "fused")


def test_a_choice_of_auto_holds_for_auto_alone():
    wrong = calling("chunk_logits", lambda self, z, *_: 2 * z, Softmax, fused=FusedLogits)
    head, x = made(wrong)().double(), features()
    torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))
    for options in ({"impl": "fused"}, {"filter_gradients": True}):
        with pytest.raises(UserError, match="Own"):
            by_loss(head, x, **options)


def test_generation_prepares_nothing_for_an_own_layer():
    def tensors(self):
        return {**Plain.tensors(self), "weight": self.weight / self.temperature}

    head, x = define(Plain, tensors=tensors, temperature=1.0)().double().eval(), features()
    with torch.no_grad():
        by_loss(head, x)
        head(x)
        head.temperature = 5.0
        torch.testing.assert_close(by_loss(head, x), by_plain_torch(head, x))
