"""MoS with label smoothing where probabilities underflow: the loss goes through logarithms."""

import pytest
import torch

from highrank_plugins.losses.fused import mixture
from tests.heads.cases import MOS, POINTWISE, make_features
from tests.losses.levels import CLASSES, FULL, TARGET, TOKENS, assert_same, run

CASES = [MOS.with_pointwise(name, **options) for name, options in POINTWISE]


@pytest.fixture
def taken(monkeypatch):
    """How often the pass through logarithms was taken."""
    calls = []
    original = mixture.FusedMixture._log_domain_pass

    def counted(self, *args):
        calls.append(1)
        return original(self, *args)

    monkeypatch.setattr(mixture.FusedMixture, "_log_domain_pass", counted)
    return calls


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_numbers_by_logarithms(case, reduction, taken, monkeypatch):
    """As a GPU takes it, for every block."""
    monkeypatch.setattr(mixture, "_underflows", lambda probabilities: True)
    head, features = case.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    options = {**FULL, "reduction": reduction}
    want = run(head, features, TARGET, impl="reference", **options)
    assert_same(run(head, features, TARGET, impl="fused", **options), want)
    assert taken


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_underflow_is_seen_and_exact(reduction, taken):
    head, features = MOS.build(classes=CLASSES), make_features(TOKENS).requires_grad_()
    with torch.no_grad():
        head.bias.copy_(torch.linspace(0, -2000, CLASSES))  # e^-2000 is 0 in float64
    options = {"label_smoothing": 0.1, "reduction": reduction}
    want = run(head, features, TARGET, impl="reference", **options)
    assert_same(run(head, features, TARGET, impl="fused", **options), want)
    assert taken
