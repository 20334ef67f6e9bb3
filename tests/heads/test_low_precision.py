"""float16 and bfloat16: error against float64 at most twice that of plain torch code.

The plain code computes in the dtype of the parameters, with a softmax in float32, as in fairseq.
"""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid

from tests.heads.cases import PRODUCT, STRUCTURES, make_features

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
    for name in truth:
        assert error(ours[name], truth[name]) <= 2 * error(naive[name], truth[name]), name


def test_plain_code_equals_the_heads():
    """Check the yardstick itself in float64."""
    for case in STRUCTURES:
        head = case.build()
        got = plain(head, make_features(5))
        torch.testing.assert_close(got.double(), head(make_features(5)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_autocast_returns_float32(case):
    head, features = case.build(dtype=torch.float32), make_features(3).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = head(features)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3), rtol=0, atol=1e-5)
