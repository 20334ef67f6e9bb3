"""Refuse a test that cannot fail: zeros would pass in the place of all that it expects."""

import sys

import pytest


def _zeros(expected):
    if isinstance(expected, dict):
        return {name: _zeros(value) for name, value in expected.items()}
    if isinstance(expected, list | tuple):
        return [_zeros(value) for value in expected]
    is_number = isinstance(expected, int | float) or hasattr(expected, "is_floating_point")
    return expected * 0 if is_number else expected


def _numbers(expected):
    """Return the tensors whose numbers are not whole."""
    if isinstance(expected, dict):
        expected = list(expected.values())
    if isinstance(expected, list | tuple):
        return [found for value in expected for found in _numbers(value)]
    return [expected] if getattr(expected, "is_floating_point", bool)() else []


def _judged(stock, judgements):
    """Return `stock`, a comparison; it notes for calls of tests whether zeros would fail."""

    def compare(actual, expected, *args, **options):
        found = stock(actual, expected, *args, **options)
        by_test = sys._getframe(1).f_globals["__name__"].startswith("test")
        if by_test and any(bool((v * 1.0 != 0).any()) for v in _numbers(expected)):
            try:
                passes = stock(_zeros(expected), expected, *args, **options) is not False
            except AssertionError:
                passes = False
            judgements.append(not passes)
        return found

    return compare


@pytest.fixture(autouse=True)
def tolerances_can_fail(request):
    judgements = []
    with pytest.MonkeyPatch.context() as patch:  # not the test's own, which would end later
        if torch := sys.modules.get("torch"):
            places = ((torch.testing, "assert_close"), (torch, "allclose"))
            for place, name in (*places, (request.module, "assert_close")):
                if stock := getattr(place, name, None):
                    patch.setattr(place, name, _judged(stock, judgements))
        yield
    assert not judgements or any(judgements), "no comparison of this test can fail: zeros pass, too"
