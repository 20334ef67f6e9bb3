"""Logits of ±1e4, saturated gates and priors, NaN, half precision; tests/losses has more."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid

from tests.heads.cases import PRODUCT, STRUCTURES, VARIANTS, arrays_of, make_features

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
    for impl in ("reference", "chunked", "fused"):
        losses = head.nll(features, torch.tensor([1, 2]), impl=impl).loss
        assert losses[0].isnan() and losses[1].isfinite(), impl


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_options_keep_extreme_logits_finite(case):
    """The options that tests/losses/test_extreme_numbers does not try."""
    head, features = extreme(case)
    totals = head(features).exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals), rtol=0, atol=1e-5)
    loss = head.nll(features.requires_grad_(), torch.arange(5), label_smoothing=0.1).loss.sum()
    gradients = torch.autograd.grad(loss, [features, *head.parameters()], allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in (loss, *gradients))


# -- float16 and bfloat16: plain code computes in the dtype of the parameters, with a softmax in
# -- float32, as in fairseq

HALF = [torch.float16, torch.bfloat16]
FEATURES, TARGET = make_features(64, feature_dim=16), torch.arange(64) % 50


def contexts(p: dict[str, Tensor], g: Tensor) -> Tensor:
    h = linear(g, p["latent.weight"], p["latent.bias"]).tanh()
    return h.unflatten(-1, (-1, p["weight"].size(1)))


def softmax(p: dict[str, Tensor], g: Tensor) -> Tensor:
    return linear(g, p["weight"], p["bias"])


def moc(p: dict[str, Tensor], g: Tensor) -> Tensor:
    prior = linear(g, p["prior.weight"]).softmax(-1)
    return linear((prior.unsqueeze(-1) * contexts(p, g)).sum(-2), p["weight"], p["bias"])


def mixtape(p: dict[str, Tensor], g: Tensor) -> Tensor:
    """Compute four components, with gates of the whole vocabulary at once."""
    (frequent, gate_dim), classes = p["gate_embed"].shape, p["weight"].size(0)
    hidden = linear(g, p["gate_hidden.weight"]).tanh().unflatten(-1, (3, gate_dim))
    own = linear(hidden, p["gate_embed"]) + p["gate_bias"].t()
    own = torch.nn.functional.pad(own, (0, classes - frequent))
    gates = own + linear(g, p["gate_shared.weight"]).unsqueeze(-1)
    (l1, l2, l3), (r1, r2, r3) = (logsigmoid(s * gates).unbind(-2) for s in (1, -1))
    pi = torch.stack([l1 + l2, l1 + r2, r1 + l3, r1 + r3], -2).exp()
    return (pi * linear(contexts(p, g), p["weight"])).sum(-2) + p["bias"]


def mos(p: dict[str, Tensor], g: Tensor) -> Tensor:
    """Return log-probabilities, which another normalisation does not change."""
    prior = linear(g, p["prior.weight"]).float().log_softmax(-1)
    rows = linear(contexts(p, g), p["weight"], p["bias"]).float().log_softmax(-1)
    return (prior.unsqueeze(-1) + rows).logsumexp(-2)


LOGITS = {f.__name__: f for f in (softmax, moc, mos, mixtape)}


def plain(head, features: Tensor) -> Tensor:
    logits = LOGITS[head.registered_name](dict(head.named_parameters()), features)
    return logits.float().log_softmax(-1)


def run(head, features, function):
    """Return log-probabilities, and the gradient of the mean nll in every input."""
    head.zero_grad()
    features = features.clone().requires_grad_()
    value = function(features)
    (-value.gather(-1, TARGET.unsqueeze(-1)).mean()).backward()
    inputs = {**dict(head.named_parameters()), "features": features}
    return {"log_probs": value.detach()} | {name: t.grad for name, t in inputs.items()}


def error(got, truth):
    return float((got.double() - truth).norm())


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_the_error_is_at_most_twice_that_of_plain_torch(case, dtype):
    sizes = {"classes": 50, "feature_dim": 16}
    options = {} if case.head == "softmax" else {"embed_dim": 12}
    head = case.build(**sizes, **options, dtype=dtype)
    ours = run(head, FEATURES.to(dtype), head)
    naive = run(head, FEATURES.to(dtype), partial(plain, head))
    truth = run(head.double(), FEATURES.to(dtype).double(), head)
    assert ours["log_probs"].dtype == torch.float32
    plain_truth = plain(head, FEATURES.to(dtype).double())  # the yardstick itself
    torch.testing.assert_close(plain_truth.double(), truth["log_probs"], rtol=1e-5, atol=1e-5)
    for name in truth:
        assert error(ours[name], truth[name]) <= 2 * error(naive[name], truth[name]), name


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_autocast_returns_float32(case):
    head, features = case.build(dtype=torch.float32), make_features(3).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = head(features)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3), rtol=0, atol=1e-5)
