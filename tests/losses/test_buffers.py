"""A caller may refill its buffers between the loss and its gradient."""

import pytest
import torch

from tests.heads.cases import STRUCTURES, make_features
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
