"""Dropout masks are fair, of the right values, governed by the seed."""

import pytest
import torch

from highrank_plugins.heads.random_state import dropout_mask


def mask(shape, p, dtype=torch.float32, seed=3):
    torch.manual_seed(seed)
    return dropout_mask(shape, p, torch.empty(0, dtype=dtype))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.65, 0.999])
def test_the_share_of_dropped_entries_is_p(p):
    found = mask((1000, 1001), p)
    torch.testing.assert_close(found[found != 0].unique(), torch.tensor([1 / (1 - p)]))
    dropped, entries = (found == 0).sum().item(), found.numel()
    assert abs(dropped - p * entries) <= 4 * (p * (1 - p) * entries) ** 0.5 + 2**-16 * entries


def test_masks_are_right_for_p_of_0_and_1():
    assert torch.equal(mask((7,), 1.0), torch.zeros(7))
    assert torch.equal(mask((70_000,), 0.0), torch.ones(70_000))
    assert mask((0, 3), 0.5).shape == (0, 3)


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 1001])
def test_entries_do_not_depend_on_their_neighbours(lag):
    """Compare neighbours, since four entries come from one draw of the generator."""
    found = mask((1000, 1001), 0.5).flatten() - 1
    correlation = (found[lag:] * found[:-lag]).mean().item()
    assert abs(correlation) < 4 / found.numel() ** 0.5


def test_masks_depend_on_the_seed_and_not_on_the_dtype():
    half = mask((50, 3), 0.5, torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half.float(), mask((50, 3), 0.5))
    assert not torch.equal(half.float(), mask((50, 3), 0.5, seed=4))
