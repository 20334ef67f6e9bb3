"""Logits of ±1e4, saturated gates and priors: finite, normalised, and still right."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from highrank_plugins.losses import IMPLEMENTATIONS
from tests.heads.cases import CASES, CLASSES, PRODUCT, STRUCTURES, arrays_of, make_features

GATES = ("prior.weight", "gate_shared.weight", "gate_embed", "gate_bias")


def extreme(case, *, logits=1e4, gates=1e4, dtype=torch.float32, seed=0):
    """Return features in [-1, 1], and a head whose logits and gates reach given sizes."""
    head = case.build(dtype=torch.float64, seed=seed)
    with torch.no_grad():
        head.weight.mul_(logits / head.weight.abs().sum(-1).max())
        for name, parameter in head.named_parameters():
            if name in GATES and parameter.numel():
                parameter.mul_(gates / parameter.abs().sum(-1).max())
    features = make_features(5, seed=seed + 1).clamp(-1, 1)
    return head.to(dtype), features.to(dtype)


def check_normalised(log_probs):
    assert log_probs.dtype == torch.float32
    assert torch.isfinite(log_probs).all()
    totals = log_probs.double().exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals), rtol=0, atol=1e-5)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.sampled_from(CASES), st.floats(-3, 4), st.floats(-3, 4), st.integers(0, 99))
def test_extreme_logits_give_normalised_probabilities(case, log_logits, log_gates, seed):
    head, features = extreme(case, logits=10**log_logits, gates=10**log_gates, seed=seed)
    check_normalised(head(features))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_every_dtype_gives_normalised_probabilities(case, dtype):
    head, features = extreme(case, dtype=dtype)
    check_normalised(head(features))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_extreme_logits_give_finite_gradients(case, smoothing, impl):
    head, features = extreme(case)
    features.requires_grad_()
    target = torch.arange(5) % CLASSES
    out = head.nll(features, target, label_smoothing=smoothing, impl=impl, reduction="sum")
    out.loss.backward()
    assert torch.isfinite(out.loss) and out.loss > 1  # some targets are all but impossible
    for name, tensor in [*head.named_parameters(), ("features", features)]:
        assert torch.isfinite(tensor.grad).all(), name


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_far_tails_are_exact(case):
    """Compare log-probabilities near -1e4, where a probability would be 0."""
    head, features = extreme(case, dtype=torch.float64)
    got = head(features).detach().numpy()
    assert got.min() < -1e3
    want = case.oracle_log_probs(arrays_of(head), features.numpy())
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_nan_stays_nan(case):
    """A diverged model has a loss that is NaN, whatever the function on its logits."""
    head = case.build()
    features = make_features(2)
    features[0, 0] = torch.nan
    for impl in ("reference", "chunked", "fused"):
        losses = head.nll(features, torch.tensor([1, 2]), impl=impl).loss
        assert losses[0].isnan() and losses[1].isfinite(), impl
