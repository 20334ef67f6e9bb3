"""A bias of −∞ rules a class out: finite gradients, the same in every implementation."""

import pytest
import torch

from highrank_plugins.losses import IMPLEMENTATIONS
from tests.heads.cases import PRODUCT, make_features
from tests.losses.implementations import ONCE, UPSTREAM, Outcome, assert_same, run

# a learned GSS has 0 · (−∞) as the gradient of its parameters
CASES = [
    case
    for case in PRODUCT
    if case.pointwise in ("identity", "sigsoftmax", "gss")
    and not case.pointwise_options.get("learn")
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_class_that_is_ruled_out_gets_no_gradient(case):
    head, features = case.build(), make_features(3).requires_grad_()
    with torch.no_grad():
        head.bias[3] = -torch.inf
    target = torch.tensor([0, 1, 6])
    options = {"reduction": "sum", "entropy": True, "z_loss": 0.05}
    want = run(head, features, target, impl="reference", **options)
    assert all(value.isfinite() for value in want.values.values())
    assert all(gradient.isfinite().all() for gradient in want.gradients.values())
    for impl in sorted({*IMPLEMENTATIONS} - {"reference", "triton"}):
        assert_same(run(head, features, target, impl=impl, **options), want)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("impl", ONCE)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_target_that_is_ruled_out_has_an_infinite_loss(case, impl, smoothing, reduction):
    """Gradients are finite, and those of all implementations are equal."""
    head, features = case.build(), make_features(3).requires_grad_()
    with torch.no_grad():
        head.bias[3] = -torch.inf
    options = {"label_smoothing": smoothing, "reduction": reduction, "entropy": True,
               "accuracy": True, "z_loss": 0.05}  # fmt: skip
    if reduction == "none":
        options["upstream"] = UPSTREAM[:3]
    want = run(head, features, torch.tensor([3, 1, 6]), impl="reference", **options)
    assert all(gradient.isfinite().all() for gradient in want.gradients.values())
    assert want.values["nll"].isinf().tolist() == (
        [True, False, False] if reduction == "none" else True
    )
    # with label smoothing every class is a target
    assert want.values["loss"].isinf().tolist() == (
        [True, smoothing > 0, smoothing > 0] if reduction == "none" else True
    )
    assert_same(run(head, features, torch.tensor([3, 1, 6]), impl=impl, **options), want)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", [case for case in CASES if case.head == "mos"], ids=str)
def test_a_target_that_every_component_rules_out_spoils_no_other(case, impl):
    """Its loss is infinite; it adds nothing to the gradients, and spoils none of the others."""
    head, features = case.build(), make_features(2).requires_grad_()
    with torch.no_grad():
        head.bias[5] = -torch.inf
    found = run(head, features, torch.tensor([5, 2]), impl=impl, reduction="none",
                upstream=UPSTREAM[:2])  # fmt: skip
    assert found.values["loss"].isinf().tolist() == [True, False]
    other = run(head, features[1:], torch.tensor([2]), impl=impl, reduction="none",
                upstream=UPSTREAM[1:2])  # fmt: skip
    del found.gradients["features"], other.gradients["features"]
    assert_same(Outcome({}, found.gradients), Outcome({}, other.gradients))
