"""Test common/formatting.py."""

import math

from highrank_plugins.common.formatting import percent, short


def test_numbers_for_the_eye():
    shown = [0, 0.25, 12.345, 1234.5, 3e-7, 2.51e-5, 1e6]
    assert list(map(short, shown)) == ["0", "0.25", "12.3", "1,234", "3e-7", "2.5e-5", "1e6"]
    assert [short(value) for value in (math.inf, -math.inf, math.nan)] == ["∞", "−∞", "–"]
    assert percent(0.1234) == "12.3\u00a0%"
