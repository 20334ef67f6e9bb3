"""Solve for sizes at which one configuration costs as much as another: the matched control.

What matches is the number of parameters, the compute per predicted token, or the widths.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.training.model_size import By, ModelSize, free_options, measure

TOLERANCE = 0.005
_SPECIAL = 4  # <s>, <pad>, </s>, <unk>


@dataclass(frozen=True)
class Match:
    """Hold the options that were found, their cost, and the target."""

    options: dict[str, int]
    size: ModelSize
    target: ModelSize

    def deviation(self, by: By) -> float:
        """Return the relative deviation from the target."""
        return self.size.of(by) / self.target.of(by) - 1


@contextmanager
def invented_data(options: Mapping[str, Any], words: int) -> Iterator[Path]:
    """Yield a folder with dictionaries of `words` entries, special symbols among them."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        lines = "".join(f"w{i} {words - i}\n" for i in range(words - _SPECIAL))
        languages = [options[key] for key in ("source_lang", "target_lang") if key in options]
        for file in [f"dict.{language}.txt" for language in languages] or ["dict.txt"]:
            (folder / file).write_text(lines, encoding="utf-8")
        yield folder


def solve(
    options: Mapping[str, Any],
    reference: Mapping[str, Any],
    by: By,
    data: Path | str,
    free: Sequence[str] = (),
    step: int = 4,
) -> Match:
    """Return sizes at which one model costs as much as another.

    Widths change in proportion, by `step`. Where a step of them is too much, the other sizes, such
    as the units of the LSTMs below the last, fill up the rest. `free` options replace those
    of the architecture. Sizes are multiples of `step`, and of the number of attention heads.
    """
    target = measure(reference, data)
    start = measure(options, data)
    widths, fill = (free, ()) if free else free_options(options)
    widths = [name for name in widths if name in start.options or name in free]
    if by == "width":
        return _same_width([*widths, *fill], options, target, data)
    values = {name: _size(name, options, start) for name in [*widths, *fill]}
    step = math.lcm(step, *start.heads)
    found: list[Match] = []
    for names, steps in ((widths, (step,)), (fill, (step, 1))):
        for multiple in steps:
            if not names:
                continue
            values |= _closest(values, names, multiple, options, target, by, data)
            size = measure({**options, **values}, data)
            found.append(Match(dict(values), size, target))
            if abs(found[-1].deviation(by)) <= TOLERANCE:
                return found[-1]
    best = min(found, key=lambda match: abs(match.deviation(by)))
    raise ValueError(
        f"no sizes are within {TOLERANCE:.1%} of {target.of(by):,}: the nearest, {best.options}, "
        f"have {best.size.of(by):,}; give other options with --free, or a smaller --step"
    )


def _same_width(
    names: Sequence[str], options: Mapping[str, Any], target: ModelSize, data: Path | str
) -> Match:
    values = {name: target.options[name] for name in names if name in target.options}
    if not values:
        raise ValueError(f"the two models share no size among {', '.join(names)}")
    return Match(values, measure({**options, **values}, data), target)


def _size(name: str, options: Mapping[str, Any], start: ModelSize) -> int:
    value = start.options.get(name, options.get(name))
    if not isinstance(value, int) or isinstance(value, bool):
        known = {**start.options, **options}
        raise ValueError(
            f"--free {name}: not a whole number in block train{did_you_mean(name, known)}"
        )
    return value


def _closest(
    values: Mapping[str, int],
    names: Sequence[str],
    multiple: int,
    options: Mapping[str, Any],
    target: ModelSize,
    by: By,
    data: Path | str,
) -> dict[str, int]:
    """Return the sizes, scaled in proportion, at which the cost is nearest the target's."""

    def scaled(units: int) -> dict[str, int]:
        scale = units * multiple / values[names[0]]
        sizes = {name: max(1, round(values[name] * scale / multiple)) for name in names}
        return {name: units * multiple for name, units in sizes.items()}

    def excess(units: int) -> int:
        size = measure({**options, **values, **scaled(units)}, data)
        return size.of(by) - target.of(by)

    low, high = 0, max(1, round(values[names[0]] / multiple))
    while excess(high) < 0:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) >= 0 else (middle, high)
    nearest = min(filter(None, (low, high)), key=lambda units: abs(excess(units)))
    return scaled(nearest)
