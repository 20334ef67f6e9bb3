"""Finite differences, and what happens to gradients of gradients."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from highrank_plugins.losses import IMPLEMENTATIONS
from tests.heads.cases import STRUCTURES, make_features
from tests.losses.implementations import ONCE, memory_for

TARGET, WEIGHT = torch.tensor([4, 1, 4]), torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
CASES = [s.with_pointwise(name, **options) for s, (name, options) in zip(
    STRUCTURES, [("monotone_mlp", {"units": 2}), ("plif", {"knots": 6, "bound": 3.0}),
                 ("gss", {"learn": True}), ("identity", {})], strict=True)]  # fmt: skip


def loss_of(head, impl, reduction):
    """Return the loss as a function of the features and every parameter."""
    names = [name for name, _ in head.named_parameters()]

    def function(features, *parameters):
        options = {"weight": WEIGHT, "label_smoothing": 0.2, "impl": impl, "reduction": reduction}
        if impl != "reference":
            options["memory"] = memory_for(head, 2, impl)
        call = torch.func.functional_call
        return call(NLL(head), {f"head.{n}": p for n, p in zip(names, parameters, strict=True)},
                    (features,), options)  # fmt: skip

    return function, (make_features(3).requires_grad_(), *head.parameters())


class NLL(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, features, **options):
        return self.head.nll(features, TARGET, **options).loss


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_finite_differences(case, impl, reduction):
    function, inputs = loss_of(case.build(), impl, reduction)
    # along one random direction; tests that compare with `reference` see each number
    assert gradcheck(function, inputs, fast_mode=impl != "reference")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_differentiable_twice(case):
    function, inputs = loss_of(case.build(), "reference", "sum")
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("impl", ONCE)
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_gradients_are_refused(case, reduction, impl):
    head, features = case.build(), make_features(3).requires_grad_()
    loss = head.nll(features, TARGET, impl=impl, reduction=reduction).loss.sum()
    with pytest.raises(RuntimeError, match="impl='reference'"):
        torch.autograd.grad(loss, features, create_graph=True)[0].sum().backward()
