"""What an own layer hides at its first loss, or changes after it, is found all the same."""

import random

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head as LogitHead
from highrank_plugins.heads import Softmax, build_head
from highrank_plugins.losses.softmax import FusedLogits

M, F, N = 30, 6, 37
Y = torch.arange(N) % M


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


def features(**options):
    return torch.randn(N, F, dtype=torch.float64, requires_grad=True, **options)


def loss(head, x, **options):
    return head.nll(x, Y, reduction="sum", **options).loss


def plain(head, x):
    return -head(x).gather(-1, Y[:, None]).sum()


class Plain(LogitHead):
    def __init__(self, *sizes, **options):
        super().__init__(*(sizes or (M, F)), **options)
        nn.init.normal_(self.weight)

    def chunk_logits(self, x, tensors, random_state):
        return linear(x, tensors["weight"], tensors["bias"])


# -- hidden by the numbers at the start -----------------------------------------------------------


class StaleLoRA(Plain):
    """A list keeps the parameter that no chunk replaces; B = 0 hides it."""

    def __init__(self):
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(4, F)), nn.Parameter(torch.zeros(M, 4))
        self.stale = [self.A]

    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x, tensors, random_state) + x @ self.stale[0].t() @ self.B.t()


class ForwardWithoutBias(Plain):
    """The bias is 0 at the start."""

    def forward(self, x):
        return linear(x, self.weight).log_softmax(-1)


class TemperatureAfter(Plain):
    """The temperature is 1 at the start."""

    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.ones(()))

    def chunk_log_probs(self, x, tensors, random_state):
        return self.t * super().chunk_log_probs(x, tensors, random_state)


class RareClasses(Plain):
    def chunk_nll(self, x, target, tensors, random_state, smooth):
        nll, rest = super().chunk_nll(x, target, tensors, random_state, smooth)
        return torch.where(target >= 3, 2 * nll, nll), rest


class OnceInitialised(Plain):
    done = False

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(F))
        self.done = False

    def chunk_logits(self, x, tensors, random_state):
        if not self.done:
            self.mean.copy_(x.detach().mean(0))
            self.done = True
        return super().chunk_logits(x - self.mean, tensors, random_state)


class PythonsNumbers(Plain):
    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x if random.random() < 0.9 else 2 * x, tensors, random_state)


class Position(Plain):
    def __init__(self):
        super().__init__()
        self.pos, self.drop = nn.Embedding(64, F), nn.Dropout(0.1)

    def chunk_logits(self, x, tensors, random_state):
        shifted = self.drop(x + self.pos(torch.arange(len(x))))
        return super().chunk_logits(shifted, tensors, random_state)


class Previous(Plain):
    def chunk_logits(self, x, tensors, random_state):
        before = torch.cat((torch.zeros_like(x[:1]), x[:-1]))
        return super().chunk_logits(x + before + 0.1 * torch.randn_like(x), tensors, random_state)


class Call(Plain):
    def __call__(self, x):
        return (2 * super().__call__(x)).log_softmax(-1)


class Adapter(nn.Linear):
    def __init__(self, inner, outer):
        super().__init__(inner, outer)
        self.b = nn.Parameter(torch.zeros(outer), requires_grad=False)

    def forward(self, x):
        return super().forward(x) + self.b


class Half:
    def __init__(self, function):
        self.function = function

    def __call__(self, *inputs):
        return 0.5 * self.function(*inputs)


def with_adapter():
    head = build_head("mos", num_classes=M, feature_dim=F, components=2)
    head.latent = Adapter(F, 2 * F)
    return head


def with_hook_on_part():
    head = build_head("mos", num_classes=M, feature_dim=F, components=2)
    head.latent.register_forward_hook(lambda module, inputs, output: 2 * output)
    return head


def with_backward_hook():
    head = Softmax(M, F)
    head.register_full_backward_hook(lambda module, inputs, outputs: (10 * inputs[0],))
    return head


REFUSED = [
    StaleLoRA, ForwardWithoutBias, TemperatureAfter, RareClasses, OnceInitialised, PythonsNumbers,
    Position, Previous, Call, with_adapter, with_hook_on_part, with_backward_hook,
]  # fmt: skip


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_what_the_start_hides_is_refused(build):
    head = build().double()
    name = type(head).__name__
    with pytest.raises(UserError, match=name) as error:
        loss(head, features())
    assert "\n" not in str(error.value)


def test_a_wrapped_part_is_refused_without_gradients():
    with torch.no_grad(), pytest.raises(UserError, match="never calls latent"):
        loss(with_adapter().double().eval(), features())


# -- changed after the first loss -----------------------------------------------------------------


def hook(head):
    head.register_forward_hook(lambda module, inputs, output: (2 * output).log_softmax(-1))


def patch(head):
    head.chunk_logits = lambda x, tensors, random_state: 0.5 * linear(x, tensors["weight"])


def patch_by_object(head):
    head.chunk_logits = Half(head.chunk_logits)


def gate(head):
    head.gate = 1.0


class Gated(Plain):
    gate = 0.0

    def __init__(self):
        super().__init__()
        self.gate = 0.0

    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x + self.gate * x.mean(0), tensors, random_state)


class OnlyNll(Plain):
    def chunk_nll(self, x, target, tensors, random_state, smooth):
        log_probs = self.chunk_log_probs(x, tensors, random_state)
        nll = -log_probs.gather(-1, target[:, None])[:, 0]
        return nll, -log_probs.mean(-1) if smooth else None


class OtherNll(Plain):
    def chunk_nll(self, x, target, tensors, random_state, smooth):
        return 0.5 * super().chunk_nll(x, target, tensors, random_state, smooth)[0], None


@pytest.mark.parametrize(
    ("build", "change", "first", "later"),
    [
        (Plain, hook, {}, {}),
        (Gated, gate, {}, {}),
        (OnlyNll, None, {}, {"label_smoothing": 0.1}),
        (OtherNll, None, {"accuracy": True}, {}),
    ],
)
def test_each_way_of_computing_a_loss_is_checked(build, change, first, later):
    head, x = build().double(), features()
    loss(head, x, **first)
    if change is not None:
        change(head)
    with pytest.raises(UserError, match=build.__name__):
        loss(head, x, **later)


@pytest.mark.parametrize("change", [patch, patch_by_object])
def test_a_method_that_is_replaced_later_counts(change):
    head, x = Softmax(M, F).double(), features()
    nn.init.normal_(head.weight)
    loss(head, x)
    change(head)
    torch.testing.assert_close(loss(head, x), plain(head, x))


def test_a_part_in_another_mode_is_checked():
    class Norm(Plain):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(F)

        def chunk_logits(self, x, tensors, random_state):
            return super().chunk_logits(self.norm(x), tensors, random_state)

    head, x = Norm().double(), features()
    head.norm.eval()
    loss(head, x)
    head.norm.train()
    with pytest.raises(UserError, match="Norm"):
        loss(head, x)


def test_a_choice_of_auto_holds_for_auto_alone():
    class Wrong(Softmax):
        fused = FusedLogits

        def chunk_logits(self, x, tensors, random_state):
            return 2 * super().chunk_logits(x, tensors, random_state)

    head, x = Wrong(M, F).double(), features()
    nn.init.normal_(head.weight)
    torch.testing.assert_close(loss(head, x), plain(head, x))
    for options in ({"impl": "fused"}, {"filter_gradients": True}):
        with pytest.raises(UserError, match="Wrong"):
            loss(head, x, **options)


def test_autocast_does_not_blunt_the_check():
    head = build_head("softmax", num_classes=1000, feature_dim=64)
    head.register_forward_pre_hook(lambda module, inputs: (1.1 * inputs[0],))
    x, y = torch.randn(200, 64), torch.randint(0, 1000, (200,))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(UserError, match="forward"):
        head.nll(x, y)


def test_generation_prepares_nothing_for_an_own_layer():
    class Cooled(Plain):
        temperature = 1.0

        def tensors(self):
            return {**super().tensors(), "weight": self.weight / self.temperature}

    head, x = Cooled().double().eval(), features()
    with torch.no_grad():
        loss(head, x)
        head(x)
        head.temperature = 5.0
        torch.testing.assert_close(loss(head, x), plain(head, x))
