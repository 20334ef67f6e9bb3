"""Test losses/fused/summed_linear.py: `linear` whose gradients go to sums, against autograd."""

import pytest
import torch
from torch.nn.functional import linear

from highrank_plugins.losses.fused.summed_linear import GradientSum, SummedLinear

ROUNDS = 3


def tensors(dtype=torch.float64, leading=()):
    generator = torch.Generator().manual_seed(0)
    shapes = [(*leading, 6, 5), (4, 5), (4,)]
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [t.to(dtype).requires_grad_() for t in made]


def loss(x, weight, bias):
    return (linear(x, weight, bias).tanh() * torch.arange(4)).sum()


def sums_of(leaves, chosen, dtype=torch.float64):
    """Return sums whose first content is NaN, as memory may hold."""
    return {i: GradientSum(torch.full_like(leaves[i], torch.nan, dtype=dtype)) for i in chosen}


def summed(leaves, sums, compute=None):
    return SummedLinear(((leaves[i], total) for i, total in sums.items()), compute)


@pytest.mark.parametrize("chosen", [(0,), (1,), (2,), (0, 1, 2), ()])
def test_gradients_are_those_of_autograd(chosen):
    """Compare both ways; tensors without a sum get their gradients from autograd."""
    leaves = tensors()
    expected = torch.autograd.grad(loss(*leaves), leaves)
    sums = sums_of(leaves, chosen)
    with summed(leaves, sums):
        value = loss(*leaves)
    torch.testing.assert_close(value, loss(*leaves), rtol=0, atol=0)
    for _ in range(ROUNDS):
        found = torch.autograd.grad(value, leaves, allow_unused=True, retain_graph=True)
    for i, gradient in enumerate(expected):
        assert (found[i] is None) == (i in chosen)
        total = sums[i].total / ROUNDS if i in chosen else found[i]
        torch.testing.assert_close(total, gradient, rtol=1e-12, atol=1e-12)


def test_other_uses_of_a_tensor_are_left_to_autograd():
    leaves = tensors()
    wanted = torch.autograd.grad((leaves[1] ** 3).sum() + loss(*leaves), leaves[1])[0]
    sums = sums_of(leaves, (1,))
    with summed(leaves, sums):
        value = (leaves[1] ** 3).sum() + loss(*leaves)
    (found,) = torch.autograd.grad(value, [leaves[1]])
    sums[1].add(found)
    torch.testing.assert_close(sums[1].total, wanted, rtol=1e-12, atol=1e-12)


def test_only_matrices_are_summed():
    x, weight, _ = leaves = tensors(leading=(2,))
    sums = sums_of(leaves, (1,))
    with summed(leaves, sums):
        value = linear(x, weight).sum()
    assert torch.autograd.grad(value, [weight])[0] is not None
    with summed(leaves, sums):
        value = linear(x[0], weight).sum()
    assert torch.autograd.grad(value, [weight], allow_unused=True) == (None,)
    wanted = x[0].sum(0).expand(4, -1)
    torch.testing.assert_close(sums[1].total, wanted, rtol=1e-12, atol=1e-12)


def test_a_sum_without_gradients_is_zero():
    sums = sums_of(tensors(), (0,))
    sums[0].finish()
    assert (sums[0].total == 0).all()


def test_half_precision_products_are_added_up_in_float32():
    """Add as often as a half-precision sum, with its 8 bits, would stop growing."""
    leaves = tensors(torch.bfloat16)
    wide = [t.detach().double().requires_grad_() for t in leaves]
    sums = sums_of(leaves, (1, 2), torch.float32)
    rounds = 1000
    factor = torch.tensor([1.0, *[1 / 256] * 5], dtype=torch.bfloat16).unsqueeze(-1)
    for _ in range(rounds):
        with summed(leaves, sums):
            value = linear(*leaves)
        torch.autograd.grad(value, leaves[1:], factor.expand(-1, 4), allow_unused=True)
    wanted = torch.autograd.grad(rounds * (linear(*wide) * factor).sum(), wide[1:])
    for i in (1, 2):
        assert sums[i].total.dtype == torch.float32
        torch.testing.assert_close(sums[i].total.double(), wanted[i - 1], rtol=8e-3, atol=0)
    torch.testing.assert_close(sums[2].total, torch.full((4,), rounds * (1 + 5 / 256)))


def test_autocast_computes_as_without_sums():
    leaves = tensors(torch.float32)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        expected = loss(*leaves)
        sums = sums_of(leaves, (0, 1, 2), torch.float32)
        with summed(leaves, sums, torch.bfloat16):
            value = loss(*leaves)
    assert torch.equal(value, expected)
    torch.autograd.grad(value, leaves, allow_unused=True)
    for total, gradient in zip(sums.values(), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(total.total, gradient, rtol=2e-2, atol=2e-2)
