"""A caller may refill its buffers between the loss and its gradient, and gets all memory back."""

import gc

import pytest
import torch

from tests.heads.cases import STRUCTURES, Case, make_features
from tests.losses.implementations import CLASSES, TARGET, TOKENS, WEIGHT


@pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_the_gradient_uses_the_targets_and_weights_of_the_call(case, reduction, impl):
    head, gradients = case.build(classes=CLASSES), []
    for reuse in (False, True):
        head.zero_grad()
        target, weight = TARGET.clone(), WEIGHT.clone()
        options = {"weight": weight, "reduction": reduction, "impl": impl}
        loss = head.nll(make_features(TOKENS), target, **options).loss
        if reuse:
            target.fill_(1)
            weight.fill_(9.0)
        loss.sum().backward()
        gradients.append({name: p.grad.clone() for name, p in head.named_parameters()})
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize("impl", ["chunked", "fused", "cpp"])
@pytest.mark.parametrize("case", [*STRUCTURES, Case("mixtape", options={"frequent": 0})], ids=str)
def test_no_tensor_outlives_a_step(case, impl):
    """Train Mixtape without gates of its own, too: parts of its graph get no gradient."""
    head, counts = case.build(classes=CLASSES), []
    for _ in range(4):
        head.nll(make_features(TOKENS), TARGET, reduction="sum", impl=impl).loss.backward()
        gc.collect()
        counts.append(sum(isinstance(thing, torch.Tensor) for thing in gc.get_objects()))
    assert counts[-1] == counts[1]
