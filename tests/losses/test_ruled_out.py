"""A bias of −∞ rules a class out: finite losses and gradients, the same in every implementation."""

import pytest
import torch

from highrank_plugins.losses import IMPLEMENTATIONS
from tests.heads.cases import PRODUCT, make_features
from tests.losses.implementations import assert_same, run

# a learned GSS has 0 · (−∞) as the gradient of its parameters
CASES = [
    case
    for case in PRODUCT
    if case.pointwise in ("identity", "sigsoftmax", "gss")
    and not case.pointwise_options.get("learn")
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ruled_out(case):
    head, features = case.build(), make_features(3).requires_grad_()
    with torch.no_grad():
        head.bias[3] = -torch.inf
    target = torch.tensor([0, 1, 6])
    want = run(head, features, target, impl="reference", reduction="sum")
    assert want.values["loss"].isfinite()
    assert all(gradient.isfinite().all() for gradient in want.gradients.values())
    for impl in sorted({*IMPLEMENTATIONS} - {"reference", "triton"}):
        assert_same(run(head, features, target, impl=impl, reduction="sum"), want)
