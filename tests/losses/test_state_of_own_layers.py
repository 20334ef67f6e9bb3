"""State, far neighbours, clipped gradients, and replaced methods of own layers are found."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import MixtureOfSoftmaxes, Softmax
from highrank_plugins.heads.pointwise import GeneralizedSigSoftmax, Pointwise, Softcap
from tests.losses.own_structures import Doubled
from tests.losses.test_contract_of_own_layers import F, M, Plain, features, loss, plain


class Shifted(Plain):
    """Shift the features by `shift(x)`."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x + self.shift(x), tensors, random_state)


class ClipBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


class Clipped(Pointwise):
    def apply_to(self, z, tensors):
        return ClipBackward.apply(z)


class RunningMean(Plain):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(F, dtype=torch.float64)

    def chunk_logits(self, x, tensors, random_state):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().chunk_logits(x, tensors, random_state)


class Counts(Plain):
    def __init__(self):
        super().__init__()
        self.seen = {"calls": 0}

    def chunk_logits(self, x, tensors, random_state):
        self.seen["calls"] += 1
        return super().chunk_logits(x, tensors, random_state)


class FirstMean(Plain):
    def __init__(self):
        super().__init__()
        self.kept = []

    def chunk_logits(self, x, tensors, random_state):
        if not self.kept:
            self.kept.append(x.detach().mean(0))
        return super().chunk_logits(x - self.kept[0], tensors, random_state)


class OwnNll(Softmax):
    def nll(self, features, target, **options):
        return super().nll(2 * features, target, **options)


class OwnTopK(Plain):
    def top_k(self, features, k=1):
        return super().top_k(2 * features, k)


REFUSED = {
    "five tokens ago": lambda: Shifted(lambda x: torch.cat((torch.zeros_like(x[:5]), x[:-5]))),
    "blocks of eight": lambda: Shifted(lambda x: (torch.arange(len(x)) // 8)[:, None]),
    "more than eight": lambda: Shifted(lambda x: x.mean(0) if len(x) > 8 else 0),
    "rarely": lambda: Shifted(lambda x: x.mean(0) if x.abs().max() > 2 else 0),
    "places and noise": lambda: Shifted(
        lambda x: torch.arange(len(x))[:, None] + torch.randn_like(x)
    ),
    "clipped": lambda: Softmax(M, F, pointwise=Clipped()),
    "clipped mixture": lambda: MixtureOfSoftmaxes(M, F, components=3, pointwise=Clipped()),
    "statistics": RunningMean,
    "counts": Counts,
    "first mean": FirstMean,
    "nll": lambda: OwnNll(M, F),
    "top_k": OwnTopK,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_four_tokens_do_not_show_is_refused(name):
    torch.manual_seed(0)
    head = REFUSED[name]().double()
    with pytest.raises(UserError, match=type(head).__name__) as error:
        loss(head, features())
    assert "\n" not in str(error.value)


# -- the check leaves a layer as it was -------------------------------------------------------


class InDict(Plain):
    def __init__(self):
        super().__init__()
        self.kept, self.best = {}, math.nan

    def norm(self):
        return self.kept.setdefault("norm", self.weight.detach().norm())

    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x, tensors, random_state) / self.norm()


class InList(InDict):
    def __init__(self):
        super().__init__()
        self.kept = []

    def norm(self):
        if not self.kept:
            self.kept.append(self.weight.detach().norm())
        return self.kept[0]


class Holder:
    norm = None


class InObject(InDict):
    def __init__(self):
        super().__init__()
        self.kept = Holder()

    def norm(self):
        if self.kept.norm is None:
            self.kept.norm = self.weight.detach().norm()
        return self.kept.norm


class InCache(InDict):
    @functools.lru_cache  # noqa: B019  # what is tested here
    def norm(self):
        return self.weight.detach().norm()


@pytest.mark.parametrize("cls", [InDict, InList, InObject, InCache])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_the_check_leaves_no_numbers_behind(cls, impl):
    head, x = cls().double(), features()
    found = loss(head, x, impl=impl)
    torch.testing.assert_close(head.norm(), head.weight.detach().norm())
    torch.testing.assert_close(found, plain(head, x))


# -- changed after the first loss -------------------------------------------------------------


class Optional(Plain):
    def __init__(self):
        super().__init__()
        self.options, self.temperature = {"norm": False}, 1.0
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def chunk_logits(self, x, tensors, random_state):
        is_normal = self.options["norm"] or self.step > 0
        return super().chunk_logits(x / x.std() if is_normal else x, tensors, random_state)


def by_option(head):
    head.options["norm"] = True


def by_buffer(head):
    head.step += 1


def after_many_values(head):
    for step in range(20):
        head.temperature = 1 / (1 + step)
        loss(head, features())
    head.options["norm"] = True


def by_backward_hook(head):
    head.register_full_backward_pre_hook(lambda module, grads: (10 * grads[0],))


def by_class(head):
    type(head).chunk_logits = lambda self, x, t, r: Plain.chunk_logits(self, x - x.mean(0), t, r)


@pytest.mark.parametrize(
    "change", [by_option, by_buffer, after_many_values, by_backward_hook, by_class]
)
def test_a_layer_that_changes_later_is_checked_again(change):
    class Own(Optional):
        pass

    head = Own().double()
    loss(head, features())
    change(head)
    with pytest.raises(UserError, match="Own"):
        loss(head, features())


@pytest.mark.parametrize(("cls", "name"), [(Softcap, "apply_to"), (Softmax, "chunk_logits")])
def test_a_method_replaced_in_a_class_of_ours_counts(cls, name, monkeypatch):
    head, x = Softmax(M, F, pointwise=Softcap(cap=3.0)).double(), features()
    nn.init.normal_(head.weight)
    loss(head, x)
    old = getattr(cls, name)
    monkeypatch.setattr(cls, name, lambda *inputs: 0.5 * old(*inputs))
    torch.testing.assert_close(loss(head, x), plain(head, x))
    with pytest.raises(UserError, match="with impl='fused'"):
        loss(head, x, impl="fused")


def test_a_parametrised_function_of_ours_learns():
    function = GeneralizedSigSoftmax(learn=True)
    parametrize.register_parametrization(function, "c", Doubled())
    head, x = Softmax(M, F, pointwise=function).double(), features()
    nn.init.normal_(head.weight)
    names = dict(head.named_parameters())
    found = torch.autograd.grad(loss(head, x), list(names.values()))
    right = torch.autograd.grad(plain(head, x), list(names.values()))
    for a, b in zip(found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


class Noisy(Pointwise):
    """Add normal numbers, which torch draws by 16: another number of tokens has others."""

    def apply_to(self, z, tensors):
        return z + 0.1 * torch.randn_like(z)


@pytest.mark.parametrize("impl", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("structure", [Softmax, MixtureOfSoftmaxes])
def test_normal_noise_is_no_fault(structure, impl):
    for classes in (23, 32, 1000):
        head = structure(classes, F, pointwise=Noisy()).double()
        x, target = features(), torch.zeros(len(features()), dtype=torch.int64)
        assert head.nll(x, target, impl=impl, reduction="mean").loss.isfinite()


class NoisyClipped(Noisy):
    def apply_to(self, z, tensors):
        return ClipBackward.apply(super().apply_to(z, tensors))


def test_noise_hides_no_fault():
    head = Softmax(M, F, pointwise=NoisyClipped()).double()
    with pytest.raises(UserError, match="norm of the gradient"):
        loss(head, features(), impl="chunked")


def test_smoothing_needs_every_class():
    class Banned(Plain):
        def chunk_logits(self, x, tensors, random_state):
            z = super().chunk_logits(x, tensors, random_state)
            return z.index_fill(-1, torch.tensor([0]), -math.inf)

    head, x = Banned().double(), features()
    target = torch.ones(len(x), dtype=torch.int64)
    assert head.nll(x, target).loss.isfinite().all()
    with pytest.raises(UserError, match="label smoothing needs every class to be possible"):
        head.nll(x, target, label_smoothing=0.1)


@pytest.mark.parametrize("way", ["data", "float", "unused", "right"])
def test_a_parameter_that_does_not_learn_is_named(way, caplog):
    class Tempered(Plain):
        def __init__(self):
            super().__init__()
            self.t = nn.Parameter(torch.ones(()))

        def chunk_logits(self, x, tensors, random_state):
            factor = {"data": self.t.data, "float": float(self.t), "right": self.t}.get(way, 1.0)
            return factor * super().chunk_logits(x, tensors, random_state)

    loss(Tempered().double(), features())
    said = [r.getMessage() for r in caplog.records if "does not learn" in r.getMessage()]
    assert len(said) == (way != "right") and all("no gradient for t," in text for text in said)
