"""float16 and bfloat16: error against float64 at most twice that of plain torch code."""

import pytest
import torch

from tests.heads import plain
from tests.heads.cases import PRODUCT, STRUCTURES, make_features

HALF = [torch.float16, torch.bfloat16]
FEATURES, TARGET = make_features(64, feature_dim=16), torch.arange(64) % 50


def value_and_gradients(log_probs, inputs):
    """Return log-probabilities, and the gradient of the mean nll in every input."""
    value = log_probs()
    (-value.gather(-1, TARGET.unsqueeze(-1)).mean()).backward()
    return {"log_probs": value.detach()} | {name: t.grad for name, t in inputs.items()}


def run(head, features, function):
    head.zero_grad()
    features = features.clone().requires_grad_()
    inputs = {**dict(head.named_parameters()), "features": features}
    return value_and_gradients(lambda: function(features), inputs)


def error(got, truth):
    return float((got.double() - truth).norm())


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_the_error_is_at_most_twice_that_of_plain_torch(case, dtype):
    sizes = {"classes": 50, "feature_dim": 16}
    options = {} if case.head == "softmax" else {"embed_dim": 12}
    head = case.build(**sizes, **options, dtype=dtype)
    ours = run(head, FEATURES.to(dtype), head)
    naive = run(head, FEATURES.to(dtype),
                lambda x: plain.log_probs(case.head, dict(head.named_parameters()), x))  # fmt: skip
    truth = run(head.double(), FEATURES.to(dtype).double(), head)
    assert ours["log_probs"].dtype == torch.float32
    for name in truth:
        assert error(ours[name], truth[name]) <= 2 * error(naive[name], truth[name]), name


def test_plain_code_equals_the_heads():
    """Check the yardstick itself in float64."""
    for case in STRUCTURES:
        head = case.build()
        got = plain.log_probs(case.head, dict(head.named_parameters()), make_features(5))
        torch.testing.assert_close(got.double(), head(make_features(5)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_autocast_returns_float32(case):
    head, features = case.build(dtype=torch.float32), make_features(3).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = head(features)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3), rtol=0, atol=1e-5)
