"""Tolerances that cannot fail are seen, in a test of the tests."""

import pytest
import torch

from tests.failing_tolerances import _judged


@pytest.mark.parametrize("compare", [torch.testing.assert_close, torch.allclose])
def test_small_numbers_need_a_small_tolerance(compare):
    small, judgements = torch.full((3,), 1e-7), []
    compare = _judged(compare, judgements)
    compare(small, small, rtol=1e-3, atol=1e-6)
    compare(small, small, rtol=1e-3, atol=1e-9)
    compare(torch.zeros(2), torch.zeros(2), rtol=0, atol=1)
    compare(torch.arange(3), torch.arange(3), rtol=0, atol=9)
    assert judgements == [False, True]
    # whole collections are judged together
    found = {"one": torch.zeros(2), "other": [torch.ones(2), torch.tensor(1)]}
    compare = _judged(torch.testing.assert_close, judgements)
    compare(found, found)
    compare(found, found, atol=1, rtol=0)
    assert judgements[2:] == [True, False]


def test_a_test_whose_comparisons_cannot_fail_is_refused(pytester):
    pytester.makeconftest('pytest_plugins = ["tests.failing_tolerances"]')
    pytester.makepyfile(
        "import torch\n"
        "def compare(atol):\n"
        "    torch.testing.assert_close(torch.ones(2), torch.ones(2), rtol=0, atol=atol)\n"
        "def test_one():\n    compare(1)\n"
        "def test_other():\n    compare(1); compare(0.1)\n"
    )
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2, errors=1)
    assert "refused.py::test_one" in result.stdout.str().rpartition("short test summary")[2]
