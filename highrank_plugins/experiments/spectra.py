"""Spectra of several models, as `highrank analyse spectrum` wrote them, side by side."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NUMBERS = (
    "contexts", "words", "dtype", "press_rank", "effective_rank", "spectral_entropy",
)  # fmt: skip


@dataclass(frozen=True)
class ModelSpectrum:
    """What the file of a model says; `name` is that of the file."""

    name: str
    contexts: int
    words: int
    dtype: str
    press_rank: int
    effective_rank: dict[str, int]
    spectral_entropy: float
    singular_values: list[float]

    @property
    def relative_values(self) -> list[float]:
        """Singular values over the largest."""
        largest = self.singular_values[0]
        return [value / largest for value in self.singular_values]


def read_spectra(paths: Sequence[Path]) -> list[ModelSpectrum]:
    """One spectrum per file.

    Raises:
        ValueError: a file is no such result; two have the same name. OSError.
    """
    found = [_read(path) for path in paths]
    if len({spectrum.name for spectrum in found}) < len(found):
        raise ValueError("two files have the same name: it is what they are told apart by")
    return found


def _read(path: Path) -> ModelSpectrum:
    try:
        written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values = [float(value) for value in written["singular_values"]]
        if not values or values[0] <= 0:
            raise ValueError("no singular value is above 0")
        numbers = {name: written[name] for name in _NUMBERS}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no result of analyse spectrum ({error!r})") from None
    return ModelSpectrum(path.stem, **numbers, singular_values=values)
