"""Gradients of gradients: `reference` has them, by finite differences; others refuse them."""

import pytest
import torch
from torch.autograd import gradgradcheck

from tests.heads.cases import STRUCTURES, make_features
from tests.losses.implementations import ONCE

TARGET, WEIGHT = torch.tensor([4, 1, 4]), torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
CASES = [s.with_pointwise(name, **options) for s, (name, options) in zip(
    STRUCTURES, [("monotone_mlp", {"units": 2}), ("plif", {"knots": 6, "bound": 3.0}),
                 ("gss", {"learn": True}), ("identity", {})], strict=True)]  # fmt: skip


class NLL(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, features):
        options = {"weight": WEIGHT, "label_smoothing": 0.2, "impl": "reference"}
        return self.head.nll(features, TARGET, reduction="sum", **options).loss


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_is_differentiable_twice(case):
    module = NLL(case.build())
    names = [name for name, _ in module.named_parameters()]

    def loss(features, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, named, (features,))

    assert gradgradcheck(loss, (make_features(3).requires_grad_(), *module.parameters()))


@pytest.mark.parametrize("impl", ONCE)
@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_of_gradients_are_refused(case, reduction, impl):
    head, features = case.build(), make_features(3).requires_grad_()
    loss = head.nll(features, TARGET, impl=impl, reduction=reduction).loss.sum()
    with pytest.raises(RuntimeError, match="impl='reference'"):
        torch.autograd.grad(loss, features, create_graph=True)[0].sum().backward()
