"""Test losses with frozen parts, shared parts, and without gradients."""

import itertools

import pytest
import torch

from tests.heads.cases import STRUCTURES, Case, make_features
from tests.losses.implementations import (
    CLASSES,
    RUNNABLE,
    TARGET,
    TOKENS,
    assert_same,
    memory_for,
    run,
)

FROZEN = [
    names
    for n in range(1, 4)
    for names in itertools.combinations(("weight", "bias", "features"), n)
]


def both(head, features, **options):
    want = run(head, features, TARGET, impl="reference", label_smoothing=0.1, **options)
    for impl in RUNNABLE[1:]:
        got = run(head, features, TARGET, impl=impl, memory=memory_for(head, 3, impl),
                  label_smoothing=0.1, **options)  # fmt: skip
        assert_same(got, want)
    return want


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("frozen", FROZEN, ids="+".join)
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_frozen_tensors_get_no_gradient(case, frozen, reduction):
    head, features = case.build(classes=CLASSES), make_features(TOKENS)
    tensors = {**dict(head.named_parameters()), "features": features}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name not in frozen)
    got = both(head, features, reduction=reduction)
    assert got.gradients.keys() == tensors.keys() - set(frozen)


@pytest.mark.parametrize("pointwise, options", [("plif", {"freeze": True, "knots": 9}),
                                                ("gss", {"learn": True})])  # fmt: skip
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_only_some_pointwise_functions_are_trained(case, pointwise, options):
    head = case.with_pointwise(pointwise, **options).build(classes=CLASSES)
    got = both(head, make_features(TOKENS), reduction="sum")
    trained = {name for name in got.gradients if name.startswith("pointwise.")}
    assert trained == ({"pointwise.c", "pointwise.log_k"} if pointwise == "gss" else set())


@pytest.fixture
def new_memory_is_nan():
    """Let torch write NaN into memory that it leaves to be written."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("new_memory_is_nan")
def test_features_without_part_in_the_loss_get_zeros(monkeypatch):
    head, features = Case("mos").build(classes=CLASSES), make_features(TOKENS)
    features.requires_grad_()
    inputs = type(head).token_inputs
    monkeypatch.setattr(
        type(head), "token_inputs", lambda self, x, *rest: inputs(self, x.detach(), *rest)
    )
    loss = head.nll(features, TARGET, reduction="sum", impl="fused").loss
    (found,) = torch.autograd.grad(loss, [features])
    assert (found == 0).all()


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_losses_work_without_gradients(case, reduction):
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    want = run(head, features, TARGET, impl="reference", reduction=reduction)
    with torch.no_grad():
        got = both(head, features, reduction=reduction)
        assert not head.nll(features, TARGET, reduction=reduction).loss.requires_grad
    assert not got.gradients
    smoothed = run(head, features, TARGET, reduction=reduction, label_smoothing=0.1)
    torch.testing.assert_close(got.values["nll"], want.values["nll"])
    torch.testing.assert_close(got.values["loss"], smoothed.values["loss"])


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_a_tied_weight_may_be_used_elsewhere(case, reduction):
    """The matrix is also the embedding that makes the features, and decays."""
    gradients = []
    for impl in RUNNABLE:
        weight = torch.nn.Parameter(make_features(CLASSES, feature_dim=4))
        head = case.build(classes=CLASSES, weight=weight, embed_dim=4)
        features = torch.nn.functional.embedding(torch.arange(TOKENS), weight).tanh()
        out = head.nll(features, TARGET, impl=impl, reduction=reduction, label_smoothing=0.1)
        (2.5 * out.loss.sum() + (weight**3).sum()).backward()
        assert head.weight is weight
        gradients.append(weight.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_gradients_of_two_batches_accumulate(case):
    """Sum the gradients of two batches before a step, each with its own upstream."""
    head, sums = case.build(classes=CLASSES), []
    for impl in RUNNABLE:
        head.zero_grad()
        first = head.nll(make_features(TOKENS), TARGET, impl=impl, reduction="sum").loss
        second = head.nll(make_features(TOKENS, seed=8), TARGET, impl=impl, reduction="sum").loss
        (0.3 * first - 1.7 * second).backward()
        sums.append({name: p.grad.clone() for name, p in head.named_parameters()})
    for gradient in sums[1:]:
        torch.testing.assert_close(gradient, sums[0], rtol=1e-9, atol=1e-11)
