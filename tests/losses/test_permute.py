"""losses/fused/tournament.py: contexts are put into another order within their own memory."""

import itertools

import pytest
import torch

from highrank_plugins.losses.fused.tournament import permute_, slots_of_leaves


@pytest.mark.parametrize("order", [*itertools.permutations(range(4)), slots_of_leaves(16)])
def test_every_order(order):
    x = torch.randn(len(order), 3, 2)
    want, memory = x[list(order)], x.data_ptr()
    permute_(x, order)
    assert torch.equal(x, want) and x.data_ptr() == memory
