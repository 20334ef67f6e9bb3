"""Test gradient retention by hand, and by projectors written out."""

import math

import pytest
import torch

from highrank_plugins.analysis.retention import gradient_retention


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_retention_equals_values_computed_by_hand():
    weight = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0]])  # spans the first two axes
    gradient = torch.tensor([[3.0, 0.0, 4.0], [1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    tokens = gradient_retention(weight, gradient, per_token=True)
    torch.testing.assert_close(tokens, torch.tensor([0.6, 1.0, 0.0], dtype=torch.float64))
    whole = gradient_retention(weight, gradient)
    assert float(whole) == pytest.approx(math.sqrt(10 / 30))


def test_retention_equals_that_of_the_explicit_projector():
    weight, gradient = random(13, 4), random(7, 13, seed=2)
    projector = weight @ torch.linalg.inv(weight.t() @ weight) @ weight.t()
    kept = (gradient @ projector).norm(dim=1) / gradient.norm(dim=1)
    torch.testing.assert_close(gradient_retention(weight, gradient, per_token=True), kept)
    # only the space counts, not the basis; a column twice adds nothing
    mixed = torch.cat([weight @ random(4, 4, seed=3), weight[:, :2]], 1)
    torch.testing.assert_close(gradient_retention(mixed, gradient, per_token=True), kept)
    torch.testing.assert_close(
        gradient_retention(weight.float(), gradient.float(), per_token=True),
        kept,
        rtol=1e-5,
        atol=0,
    )


def test_the_lost_gradient_is_the_part_that_autograd_cannot_see():
    weight, gradient = random(13, 4), random(5, 13, seed=2)
    features = random(5, 4, seed=3).requires_grad_()
    (seen,) = torch.autograd.grad(features @ weight.t(), features, gradient)
    least = torch.linalg.lstsq(weight.t(), seen.t()).solution  # the shortest with this image
    share = least.norm() / gradient.norm()
    torch.testing.assert_close(gradient_retention(weight, gradient), share)


def test_a_square_layer_loses_nothing():
    assert float(gradient_retention(random(5, 5), random(3, 5))) == pytest.approx(1.0)
    assert float(gradient_retention(torch.zeros(5, 2), random(3, 5))) == 0


def test_tokens_without_a_gradient_have_no_retention():
    gradient = random(3, 5)
    gradient[1] = 0
    tokens = gradient_retention(random(5, 2), gradient, per_token=True)
    assert tokens.isnan().tolist() == [False, True, False]
