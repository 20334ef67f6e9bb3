"""Test `linear_of`, whose gradients go to sums within a block of tokens, against autograd."""

import pytest
import torch

from highrank_plugins.losses.autograd import FEATURES, GradientSum, SummedTensors, linear_of

ROUNDS = 3
NAMES = (FEATURES, "latent.weight", "latent.bias")


def tensors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 5), (4, 5), (4,)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [t.to(dtype).requires_grad_() for t in made]


def product(leaves, sums=None, compute=torch.float64):
    x, *named = leaves
    plain = dict(zip(NAMES[1:], named, strict=True))
    return linear_of(x, plain if sums is None else SummedTensors(plain, x, sums, compute), "latent")


def loss(*inputs):
    return (product(*inputs).tanh() * torch.arange(4)).sum()


def sums_of(leaves, chosen, dtype=torch.float64):
    """Return sums whose first content is NaN, as memory may hold."""
    return {
        NAMES[i]: GradientSum(torch.full_like(leaves[i], torch.nan, dtype=dtype)) for i in chosen
    }


@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 1, 2)])
def test_gradients_are_those_of_autograd(chosen):
    """Compare both ways; a tensor without a sum gets no gradient."""
    leaves = tensors()
    expected = torch.autograd.grad(loss(leaves), leaves)
    sums = sums_of(leaves, chosen)
    value = loss(leaves, sums)
    torch.testing.assert_close(value, loss(leaves), rtol=0, atol=0)
    for _ in range(ROUNDS):
        found = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
        assert found == (None, None, None)
    for i in chosen:
        total = sums[NAMES[i]].total / ROUNDS
        torch.testing.assert_close(total, expected[i], rtol=1e-12, atol=1e-12)


def test_half_precision_products_are_added_up_in_float32():
    """Add as often as a half-precision sum, with its 8 bits, would stop growing."""
    leaves = tensors(torch.bfloat16)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    sums = sums_of(leaves, (1, 2), torch.float32)
    rounds = 1000
    factor = torch.tensor([1.0, *[1 / 256] * 5], dtype=torch.bfloat16).unsqueeze(-1)
    for _ in range(rounds):
        value = product(leaves, sums, torch.bfloat16)
        torch.autograd.grad(value, leaves[1:], factor.expand(-1, 4), allow_unused=True)
    wanted = torch.autograd.grad(rounds * (product(wide) * factor).sum(), wide[1:])
    for i in (1, 2):
        total = sums[NAMES[i]].total
        assert total.dtype == torch.float32
        torch.testing.assert_close(total.double(), wanted[i - 1], rtol=8e-3, atol=0)
    torch.testing.assert_close(sums[NAMES[2]].total, torch.full((4,), rounds * (1 + 5 / 256)))


def test_autocast_computes_as_without_sums():
    leaves = tensors(torch.float32)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        expected = loss(leaves)
        sums = sums_of(leaves, (0, 1, 2), torch.float32)
        value = loss(leaves, sums, torch.bfloat16)
    assert torch.equal(value, expected)
    torch.autograd.grad(value, leaves, allow_unused=True)
    for total, gradient in zip(sums.values(), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(total.total, gradient, rtol=2e-2, atol=2e-2)
