"""Where numbers lie on the axis of a chart, and which of them are written beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Numbers low … high on a line from pixel `start` to pixel `stop`, evenly or by logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def place(self, value: float) -> float:
        """The pixel of a value; those beyond the ends are at the ends, NaN at the lower one."""
        value = self.low if math.isnan(value) else min(max(value, self.low), self.high)
        share = (self._scale(value) - self._scale(self.low)) / self._span()
        return round(self.start + share * (self.stop - self.start), 1)

    def ticks(self) -> list[float]:
        """A few round numbers."""
        return _powers(self.low, self.high) if self.log else _steps(self.low, self.high)

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def _span(self) -> float:
        return (self._scale(self.high) - self._scale(self.low)) or 1.0


def linear(values: Sequence[float], start: float, stop: float) -> Axis:
    """An axis with all finite values."""
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    return Axis(low, high if high > low else low + 1, start, stop)


def logarithmic(values: Sequence[float], start: float, stop: float, decades: int = 9) -> Axis:
    """An axis with all positive finite values, those far below the largest at its end."""
    positive = [value for value in values if 0 < value < math.inf] or [1.0]
    high = 10.0 ** math.ceil(math.log10(max(positive)) - 1e-9)
    low = max(min(positive), high * 10.0**-decades)
    return Axis(min(10.0 ** math.floor(math.log10(low)), high / 10), high, start, stop, log=True)


def short(value: float) -> str:
    """A number for the eye: 0.25, 1,200, 3e-07, ∞."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _powers(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first) / 5))
    return [10.0**exponent for exponent in range(last, first - 1, -step)]


def _steps(low: float, high: float) -> list[float]:
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]
