"""Read the measures that `highrank analyse` wrote, for a record or a comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from highrank_plugins.common.files import read_json
from highrank_plugins.common.names import distinct_names
from highrank_plugins.common.score import Score
from highrank_plugins.measures import find_measure, measure_names
from highrank_plugins.measures.base import Measure
from highrank_plugins.results.scoring import ScoreError

T = TypeVar("T")


def read_measures(directory: Path, split: str) -> dict[str, Score]:
    """Return the scores in all files of `directory` that are named like a measure.

    Args:
        split: the measured split; names begin with it.
    """
    scores: dict[str, Score] = {}
    for found in _read_all(directory, lambda measure, found: measure.scores(found, split)).values():
        scores |= found
    return scores


def tokens_read(directory: Path) -> dict[str, int]:
    """Return the tokens that each measure of a text in `directory` covers, by its name."""
    numbers = _read_all(directory, lambda measure, found: measure.tokens_read(found))
    return {name: number for name, number in numbers.items() if number is not None}


def _read_all(directory: Path, read: Callable[[type[Measure], Any], T]) -> dict[str, T]:
    results = {}
    for name in measure_names():
        path = directory / f"{name}.json"
        if not path.is_file():
            continue
        try:
            results[name] = read(find_measure(name), read_json(path))
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ScoreError(f"{path}: not a result of {name} ({error!r})") from None
    return results


_NUMBERS = (
    "contexts", "words", "dtype", "press_rank", "effective_rank", "spectral_entropy",
)  # fmt: skip


@dataclass(frozen=True)
class ModelSpectrum:
    """Hold the spectrum in a model's file, under a distinct name, see `distinct_names`."""

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
        """Return singular values over the largest."""
        largest = self.singular_values[0]
        return [value / largest for value in self.singular_values]


def read_spectra(paths: Sequence[Path]) -> list[ModelSpectrum]:
    """Return one spectrum per file."""
    return [_read(name, path) for name, path in zip(distinct_names(paths), paths, strict=True)]


def _read(name: str, path: Path) -> ModelSpectrum:
    try:
        written: dict[str, Any] = read_json(path)
        values = [float(value) for value in written["singular_values"]]
        if not values or values[0] <= 0:
            raise ValueError("no singular value is above 0")
        numbers = {key: written[key] for key in _NUMBERS}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a result of analyse spectrum ({error!r})") from None
    return ModelSpectrum(name, **numbers, singular_values=values)
