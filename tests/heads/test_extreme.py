"""Logits of ±1e4, saturated gates and priors, NaN; tests/losses/test_extreme_numbers has more."""

import itertools

import numpy as np
import pytest
import torch

from tests.heads.cases import PRODUCT, STRUCTURES, VARIANTS, arrays_of, make_features
from tests.losses.implementations import RUNNABLE

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
    for impl, smoothing in itertools.product({*RUNNABLE} - {"triton"}, (0.0, 0.1)):
        losses = head.nll(features, torch.tensor([1, 2]), impl=impl, label_smoothing=smoothing).loss
        assert losses[0].isnan() and losses[1].isfinite(), impl
        losses.sum().backward()
        assert head.weight.grad.isnan().any()


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_options_keep_extreme_logits_finite(case):
    """The options that tests/losses/test_extreme_numbers does not try."""
    head, features = extreme(case)
    totals = head(features).exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals), rtol=0, atol=1e-5)
    loss = head.nll(features.requires_grad_(), torch.arange(5), label_smoothing=0.1).loss.sum()
    gradients = torch.autograd.grad(loss, [features, *head.parameters()], allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in (loss, *gradients))
