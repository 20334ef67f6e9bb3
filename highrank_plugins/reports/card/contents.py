"""Define the contents of a head card: plain values, which become the page and the JSON file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from highrank_plugins.common.formatting import Figure
from highrank_plugins.measures.base import CardTile

T = TypeVar("T")


@dataclass(frozen=True)
class Absent:
    """Replace a value that is missing, and say why."""

    reason: str


Maybe: TypeAlias = T | Absent


@dataclass(frozen=True)
class CardProvenance:
    """Name the checkpoint of a card, and the command and versions that computed its numbers.

    words: where the names of classes come from, or why they are numbers.
    """

    checkpoint: str
    sha256: str
    arch: str
    words: str
    data: str | None
    split: str | None
    tokens: int | None
    command: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Part:
    """Hold the parameters of one part of the model: names with shapes, and their number."""

    name: str
    tensors: list[str]
    parameters: int
    trained: bool


@dataclass(frozen=True)
class CardOptions:
    """Hold options of the head, the trunk and the run; `model` has all that fairseq stored."""

    head: Maybe[dict[str, Any]]
    trunk: dict[str, Any]
    training: dict[str, Any]
    model: dict[str, Any]


@dataclass(frozen=True)
class Section:
    """Show the result of a measure.

    tokens: number of measured tokens of the text, if any. absent: why there is no result.
    """

    title: str
    about: str
    tokens: int | None
    rows: Sequence[tuple[str, str]]
    tile: CardTile | None
    figures: Sequence[Figure]
    absent: str | None = None


@dataclass(frozen=True)
class Guess:
    """Hold a word and its probability."""

    word: str
    probability: float


@dataclass(frozen=True)
class Position:
    """Hold the true word, its probability, its rank (1 is the top), and the top words."""

    word: str
    probability: float
    place: int
    top: list[Guess]


@dataclass(frozen=True)
class Sample:
    """Show predictions along a piece of text, each from the true words before it.

    source: the sentence to translate; None for language models. before: the words before.
    """

    source: str | None
    before: str
    positions: list[Position]


@dataclass(frozen=True)
class Card:
    """Hold everything on a card; `results` and `sections` by the name of the measure.

    results: as `highrank analyse` would write them.
    """

    identity: CardProvenance
    configuration: CardOptions
    parameters: list[Part]
    results: dict[str, Maybe[Any]]
    sections: dict[str, Section]
    samples: Maybe[list[Sample]]

    def plain(self) -> dict[str, Any]:
        """Return the contents of the JSON file: everything except the page's texts and figures."""
        return {
            "identity": self.identity,
            "configuration": self.configuration,
            "parameters": self.parameters,
            "measures": self.results,
            "samples": self.samples,
        }
