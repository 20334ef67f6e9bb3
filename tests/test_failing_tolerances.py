"""A tolerance that cannot fail is refused, in a test of the tests."""

import pytest
import torch


@pytest.mark.parametrize("compare", [torch.testing.assert_close, torch.allclose])
def test_small_numbers_need_a_small_tolerance(compare):
    name = compare.__name__
    wrapped = getattr(torch.testing if name == "assert_close" else torch, name)
    small = torch.full((3,), 1e-7)
    with pytest.raises(AssertionError, match="cannot fail: zeros pass, too"):
        wrapped(small, small, rtol=1e-3, atol=1e-6)
    wrapped(small, small, rtol=1e-3, atol=1e-9)


def test_whole_collections_are_judged_together():
    found = {"one": torch.zeros(2), "other": [torch.ones(2), torch.tensor(1)]}
    torch.testing.assert_close(found, found)
    torch.testing.assert_close(torch.zeros(2), torch.zeros(2), atol=1, rtol=0)
    with pytest.raises(AssertionError, match="cannot fail"):
        torch.testing.assert_close(found, found, atol=1, rtol=0)
