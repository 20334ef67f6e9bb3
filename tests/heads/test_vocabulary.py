"""A vocabulary matrix may be any function of parameters, under every structure, f and loss."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import build_head
from highrank_plugins.heads.base import HEADS
from highrank_plugins.losses.kernels import triton
from tests.heads.cases import MIXTAPE, MOS, SOFTMAX, STRUCTURES, make_features

CLASSES, TOKENS = 37, 11
TARGET = torch.arange(TOKENS) * 3 % CLASSES
BLOCKED = ("chunked", "fused", "cpp")  # implementations beside the reference


class Shifted(nn.Module):
    """A function of a user's, with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.tensor(0.3))

    def forward(self, raw):
        return raw - self.by * raw.mean(0)

    def right_inverse(self, matrix):
        return matrix.clone()


class Product(nn.Module):
    """A product of two factors."""

    def forward(self, tall, wide):
        return tall @ wide

    def right_inverse(self, matrix):
        return matrix[:, :2].clone(), matrix[:2].clone()


def parametrised(case, function, seed=0, **options):
    """Return a float64 head whose matrix is a function of random parameters."""
    head = case.build(classes=CLASSES, seed=seed, **options)
    parametrize.register_parametrization(head, "weight", function.double(), unsafe=True)
    return head


def results(head, impl, **options):
    """Return the loss and all gradients by name."""
    head.zero_grad()
    x = make_features(TOKENS).requires_grad_()
    loss = head.nll(x, TARGET, impl=impl, reduction="sum", **options).loss
    loss.backward()
    grads = {name: p.grad.clone() for name, p in head.named_parameters()}
    return {"loss": loss.detach(), "features": x.grad, **grads}


def same(found, right, bound=1e-9):
    assert found.keys() == right.keys()
    for name, value in right.items():
        error = (found[name] - value).abs().max() / value.abs().max().clamp_min(1)
        assert error <= bound, (name, float(error))


@pytest.mark.parametrize("function", [Shifted, Product])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_parametrised_matrix_learns_under_every_loss(case, function):
    head = parametrised(case, function())
    right = results(head, "reference", label_smoothing=0.1)
    assert all(value.abs().max() > 0 for value in right.values())
    for impl in BLOCKED:
        same(results(head, impl, label_smoothing=0.1), right)
    with torch.no_grad():
        log_probs = head.log_probs(make_features(TOKENS))
        nll = head.nll(make_features(TOKENS), TARGET, impl="reference").nll
    assert torch.allclose(log_probs.gather(1, TARGET[:, None])[:, 0], -nll, atol=1e-12)


def test_a_parametrised_matrix_is_that_of_a_plain_head():
    for case in STRUCTURES:
        head, plain = parametrised(case, Shifted()), case.build(classes=CLASSES)
        with torch.no_grad():
            plain.weight.copy_(head.weight)
        right, found = results(plain, "reference"), results(head, "cpp")
        for name in ("loss", "features"):
            assert torch.allclose(found[name], right[name], rtol=0, atol=1e-9)


def test_a_tied_matrix_gets_the_gradients_of_both_uses():
    embedding = nn.Embedding(CLASSES, 4).double()
    head = SOFTMAX.build(classes=CLASSES, weight=embedding.weight)
    parametrize.register_parametrization(head, "weight", Shifted().double())
    stored = head.parametrizations.weight.original
    assert stored is embedding.weight
    found = []
    for impl in ("reference", *BLOCKED):
        head.zero_grad()
        embedding(TARGET).square().sum().backward()
        head.nll(make_features(TOKENS), TARGET, impl=impl, reduction="sum").loss.backward()
        found.append(stored.grad.clone())
    for other in found[1:]:
        assert torch.allclose(other, found[0], rtol=0, atol=1e-12)


class Wrong(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, raw):
        return self.change(raw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w[:, :-1], r"Wrong returns torch.float64 \(37, 3\), expected .* \(37, 4\)"),
        (lambda w: w.float(), r"Wrong returns torch.float32 \(37, 4\), expected torch.float64"),
        (lambda w: w / w[:, :1].mul(torch.arange(CLASSES)[:, None] != 5),
         r"Wrong returns NaN or infinite numbers for finite parameters, first for class 5;"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("impl", ["reference", *BLOCKED, "auto"])
def test_a_wrong_matrix_is_refused_at_the_first_loss(change, message, impl):
    head = parametrised(SOFTMAX, Wrong(change))
    with pytest.raises(UserError, match=message) as refused:
        head.nll(make_features(TOKENS), TARGET, impl=impl)
    assert "\n" not in str(refused.value)


def test_a_diverged_matrix_is_not_blamed_on_its_parametrisation():
    head = parametrised(MOS, Shifted())
    with torch.no_grad():
        head.parametrizations.weight.original[2] = torch.nan
    with pytest.raises(UserError) as refused:
        head.nll(make_features(TOKENS), TARGET, impl="reference")
    assert "parametrisation" not in str(refused.value)


def test_the_matrix_is_checked_once():
    head = parametrised(SOFTMAX, counted := Counted())
    results(head, "reference")
    first, counted.calls = counted.calls, 0
    results(head, "reference")
    assert (first > 1, counted.calls) == (True, 1)


class Counted(Shifted):
    calls = 0

    def forward(self, raw):
        self.calls += 1
        return super().forward(raw)


def test_a_parametrised_head_keeps_its_names_copies_and_state():
    head = parametrised(MIXTAPE, Shifted())
    assert HEADS.name_of(head) == "mixtape"
    assert HEADS.constants(head) == HEADS.constants(MIXTAPE.build(classes=CLASSES))
    right = results(head, "reference")
    same(results(copy.deepcopy(head), "fused"), right)
    other = parametrised(MIXTAPE, Shifted(), seed=5)
    other.load_state_dict(head.state_dict())
    same(results(other, "fused"), right)


def test_resetting_writes_through_the_parametrisation():
    head = build_head("softmax", num_classes=CLASSES, feature_dim=4)
    torch.manual_seed(3)
    head.reset_parameters()
    fresh = head.weight.detach().clone()
    parametrize.register_parametrization(head, "weight", Doubled())
    torch.manual_seed(3)
    head.reset_parameters()
    assert torch.equal(head.weight, fresh)


class Doubled(nn.Module):
    def forward(self, raw):
        return 2 * raw

    def right_inverse(self, matrix):
        return matrix / 2


def test_triton_reads_the_dtype_of_a_parametrised_matrix():
    head = parametrised(MOS.with_options(components=300), Product())
    with pytest.raises(ValueError, match=r"at most \d+ components in torch.float64"):
        triton.check_components(head)
