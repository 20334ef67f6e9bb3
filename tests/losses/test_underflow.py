"""MoS with label smoothing where probabilities underflow: the loss goes through logarithms."""

import pytest
import torch

from highrank_plugins.losses.kernels import torch as kernels_in_torch
from highrank_plugins.losses.kernels.torch import Kernels
from tests.heads.cases import MOS, POINTWISE, make_features
from tests.losses.implementations import CLASSES, FULL, TARGET, TOKENS, assert_same, run

CASES = [MOS.with_pointwise(name, **options) for name, options in POINTWISE]
BOUNDED = ("monotone_mlp", "softcap", "sigmoid_cap")  # no probability underflows


@pytest.fixture
def taken(monkeypatch):
    """Count how often the pass through logarithms was taken."""
    calls: list[int] = []
    original = kernels_in_torch.log_domain_pass

    def counted(*args):
        calls.append(1)
        return original(*args)

    monkeypatch.setattr(kernels_in_torch, "log_domain_pass", counted)
    return calls


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_log_domain_gives_the_same_numbers(case, reduction, taken, monkeypatch):
    """Take the pass for every block, as a GPU does."""
    monkeypatch.setattr(
        Kernels,
        "mixture_pass",
        lambda kernels, block, bias, recompute: kernels_in_torch.log_domain_pass(kernels, block),
    )
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    options = {**FULL, "reduction": reduction}
    want = run(head, features, TARGET, impl="reference", **options)
    assert_same(run(head, features, TARGET, impl="fused", **options), want)
    assert taken


@pytest.mark.parametrize("impl", ["fused", "cpp"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", [c for c in CASES if c.pointwise not in BOUNDED], ids=str)
def test_underflow_is_detected_and_the_result_exact(case, reduction, impl, taken):
    """Let some tokens underflow; the contexts of the others outweigh the bias."""
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    with torch.no_grad():
        head.bias.copy_(torch.linspace(0, -2000, CLASSES))  # e^-2000 is 0 in float64
        head.weight.copy_(torch.linspace(0, 1, CLASSES).unsqueeze(-1).expand_as(head.weight))
        features[::2] *= 500
    options = {**FULL, "reduction": reduction}
    want = run(head, features, TARGET, impl="reference", **options)
    assert_same(run(head, features, TARGET, impl=impl, **options), want)
    assert taken
