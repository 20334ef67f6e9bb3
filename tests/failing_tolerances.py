"""Refuse comparisons whose tolerance lets zeros pass in the place of what is expected."""

import sys

import pytest


def _zeros(expected):
    if isinstance(expected, dict):
        return {name: _zeros(value) for name, value in expected.items()}
    if isinstance(expected, list | tuple):
        return [_zeros(value) for value in expected]
    return expected * 0


def _numbers(expected):
    """Return the tensors whose numbers are not whole."""
    if isinstance(expected, dict):
        expected = list(expected.values())
    if isinstance(expected, list | tuple):
        return [found for value in expected for found in _numbers(value)]
    return [expected] if getattr(expected, "is_floating_point", bool)() else []


def _that_can_fail(stock):
    """Return `stock`, a comparison; it raises where zeros would pass, too."""

    def compare(actual, expected, *args, **options):
        found = stock(actual, expected, *args, **options)
        if found is False or not any(bool((v * 1.0 != 0).any()) for v in _numbers(expected)):
            return found
        try:
            passes = stock(_zeros(expected), expected, *args, **options) is not False
        except AssertionError:
            passes = False
        assert not passes, f"this comparison cannot fail: zeros pass, too, by {options or args}"
        return found

    return compare


@pytest.fixture(autouse=True)
def tolerances_can_fail(monkeypatch, request):
    if torch := sys.modules.get("torch"):
        places = ((torch.testing, "assert_close"), (torch, "allclose"))
        for place, name in (*places, (request.module, "assert_close")):
            if stock := getattr(place, name, None):
                monkeypatch.setattr(place, name, _that_can_fail(stock))
