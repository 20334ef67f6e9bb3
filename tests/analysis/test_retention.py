"""Gradient retention by projectors written out; the gradient of logits by autograd of layers."""

import pytest
import torch

from highrank_plugins.analysis.retention import gradient_retention, logit_gradient
from highrank_plugins.heads import Head
from highrank_plugins.heads.random_state import RandomState
from tests.heads.cases import CASES, CLASSES, make_features

TARGET = torch.tensor([[0, 3, 6, 2, 1], [5, 4, 6, 0, 2]])


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_retention_equals_that_of_the_explicit_projector():
    weight, gradient = random(13, 4), random(7, 13, seed=2)
    projector = weight @ torch.linalg.inv(weight.t() @ weight) @ weight.t()
    kept = (gradient @ projector).norm(dim=1) / gradient.norm(dim=1)
    whole = (gradient @ projector).norm() / gradient.norm()
    torch.testing.assert_close(gradient_retention(weight, gradient), whole)
    # only the space counts, not the basis; a column twice adds nothing
    mixed = torch.cat([weight @ random(4, 4, seed=3), weight[:, :2]], 1)
    for own, grad, near in (
        (weight, gradient, {}), (mixed, gradient, {}),
        (weight.float(), gradient.float(), {"rtol": 1e-5, "atol": 0}),
    ):  # fmt: skip
        torch.testing.assert_close(gradient_retention(own, grad, per_token=True), kept, **near)
    # a square layer loses nothing, one of zeros all; a token without gradient has no retention
    assert float(gradient_retention(random(5, 5), random(3, 5))) == pytest.approx(1.0)
    assert float(gradient_retention(torch.zeros(5, 2), random(3, 5))) == 0
    some = random(3, 5) * torch.tensor([[1.0], [0.0], [1.0]])
    found = gradient_retention(random(5, 2), some, per_token=True)
    assert found.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_logit_gradient_gives_the_gradients_of_matrix_and_bias(case):
    head, features = case.build().train(), make_features(2, 5).requires_grad_()
    with torch.no_grad():
        gradient = logit_gradient(head, features, TARGET)
        inputs = head.token_inputs(features.flatten(0, 1), head.tensors(), RandomState())
        contexts = inputs["contexts"].view(TARGET.numel(), -1, head.embed_dim)
        through = torch.einsum("nkm,nkd->md", gradient, contexts)
    assert all(tensor.grad is None for tensor in (features, *head.parameters()))
    head.nll(features, TARGET, reduction="sum", impl="reference").loss.backward()
    torch.testing.assert_close(through, head.weight.grad, rtol=1e-9, atol=1e-12)
    if head.bias is not None:
        torch.testing.assert_close(gradient.sum((0, 1)), head.bias.grad, rtol=1e-9, atol=1e-12)


class OneSoftmax(Head):
    """Stand for a structure that does not define its logits."""

    def chunk_log_probs(self, features, tensors, random_state):
        return torch.nn.functional.linear(features, tensors["weight"]).log_softmax(-1)


def test_a_layer_that_says_nothing_about_its_logits_is_treated_as_a_softmax():
    head = OneSoftmax(CLASSES, 4).double()
    probs = head.log_probs(make_features(2, 5)).flatten(0, 1).exp()
    expected = probs - torch.nn.functional.one_hot(TARGET.flatten(), CLASSES)
    found = logit_gradient(head, make_features(2, 5), TARGET)
    torch.testing.assert_close(found.squeeze(1), expected)
