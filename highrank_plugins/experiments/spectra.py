"""Spectra of several models, as `highrank analyse spectrum` wrote them, side by side."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from highrank_plugins.experiments.distinct_names import distinct_names

_NUMBERS = (
    "contexts", "words", "dtype", "press_rank", "effective_rank", "spectral_entropy",
)  # fmt: skip


@dataclass(frozen=True)
class ModelSpectrum:
    """What the file of a model says; names tell them apart, see `distinct_names`."""

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
        ValueError: a file is no such result, or given twice. OSError.
    """
    return [_read(name, path) for name, path in zip(distinct_names(paths), paths, strict=True)]


def _read(name: str, path: Path) -> ModelSpectrum:
    try:
        written: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values = [float(value) for value in written["singular_values"]]
        if not values or values[0] <= 0:
            raise ValueError("no singular value is above 0")
        numbers = {key: written[key] for key in _NUMBERS}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no result of analyse spectrum ({error!r})") from None
    return ModelSpectrum(name, **numbers, singular_values=values)
