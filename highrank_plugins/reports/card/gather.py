"""Gather the contents of a checkpoint's card: plain values, which become the page and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from highrank_plugins.analysis.predictions import target_ranks
from highrank_plugins.common.formatting import Figure
from highrank_plugins.heads import Head
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import (
    Block,
    CardTile,
    Measure,
    TextMeasure,
    WeightMeasure,
)
from highrank_plugins.reports.card.describe import Absent, Maybe, describe, parameter_parts

if TYPE_CHECKING:
    from highrank_plugins.inference.collector import Collector
    from highrank_plugins.inference.loading import LoadedModel

T = TypeVar("T")
SAMPLES = "samples"
# pieces of text, words predicted in each, words shown before it, and predictions for each word
PASSAGES, POSITIONS, BEFORE, TOP = 3, 10, 20, 5
_NUMBERED = (
    "numbers (#4 is class 4): fairseq keeps the dictionary with the data, not in the checkpoint; "
    "pass its folder as DATA"
)


class Section(NamedTuple):
    """Hold a measure's result and what the page shows of it; `absent` says why there is none.

    tokens: number of measured tokens of the text, if any.
    """

    title: str
    about: str
    result: Any
    tokens: int | None = None
    rows: Sequence[tuple[str, str]] = ()
    tile: CardTile | None = None
    figures: Sequence[Figure] = ()
    absent: str | None = None


@dataclass(frozen=True)
class Card:
    """Hold everything on a card; `sections` are those of the measures, by name."""

    identity: dict[str, Any]
    configuration: dict[str, Any]
    parameters: list[dict[str, Any]]
    sections: dict[str, Section]
    samples: Maybe[list[dict[str, Any]]]

    @property
    def results(self) -> dict[str, Any]:
        """Return the results by measure, as `highrank analyse` writes them, or an `Absent` each."""
        return {name: section.result for name, section in self.sections.items()}

    def plain(self) -> dict[str, Any]:
        """Return the contents of the JSON file: everything except the page's texts and figures."""
        of = vars(self) | {"measures": self.results}
        names = ("identity", "configuration", "parameters", "measures", SAMPLES)
        return {name: of[name] for name in names}


@torch.no_grad()
def make_card(path: Path, data: str | None, split: str, tokens: int, command: str) -> Card:
    """Read a checkpoint and apply all measures; those that do not apply say why.

    Args:
        data: directory of fairseq-preprocess; None: only the weights are measured.
        tokens: number of tokens to take from the start of the split, at least 2.
        command: the command line, for the card's provenance.
    """
    from highrank_plugins.common.provenance import versions
    from highrank_plugins.inference.loading import load_model
    from highrank_plugins.inference.streaming_model import digest_of_file

    loaded = load_model(path, data)
    head = _attempt(lambda: loaded.head)
    text = (
        head
        if data is not None and isinstance(head, Absent)
        else _text(loaded, data, split, tokens)
    )
    total = None if isinstance(text, Absent) else text.total
    kinds = {name: kind for name, kind in sorted(all_measures().items()) if kind.on_card}
    begun = {name: _begun(kind, loaded, head, text) for name, kind in kinds.items()}
    samples = text if isinstance(text, Absent) else _along(text, begun)
    return Card(
        identity={
            "checkpoint": loaded.path.name,
            "sha256": digest_of_file(loaded.path),
            "arch": loaded.arch,
            "words": "of the dictionary in the data" if data else _NUMBERED,
            "data": data,
            "split": split if data else None,
            "tokens": total,
            "command": command,
            "versions": versions(),
        },
        configuration=describe(loaded, head),
        parameters=parameter_parts(loaded.model, head),
        sections={name: _section(kind, begun[name], loaded, total) for name, kind in kinds.items()},
        samples=samples,
    )


def _attempt(function: Callable[[], T]) -> Maybe[T]:
    """Return the result of a function, or the reason why it does not apply."""
    try:
        return function()
    except (ValueError, FloatingPointError) as error:
        return Absent(str(error))


def _text(loaded: LoadedModel, data: str | None, split: str, tokens: int) -> Maybe[Collector]:
    from highrank_plugins.inference.collector import Collector

    if data is None:
        return Absent("it needs a text: without DATA only the weights are measured")
    text = Collector(loaded, split, tokens=tokens)
    if text.total < 2:
        raise ValueError(
            f"split {split!r} has fewer than two tokens ({text.total}); a card needs at least two"
        )
    return text


def _begun(
    kind: type[Measure], loaded: LoadedModel, head: Maybe[Head], text: Maybe[Collector]
) -> Maybe[Measure]:
    def begin() -> Measure:
        measure = kind.for_card(loaded.words)
        if isinstance(measure, TextMeasure):
            measure.start(loaded.words)
        return measure

    if isinstance(head, Absent):
        return head
    return text if isinstance(text, Absent) and issubclass(kind, TextMeasure) else _attempt(begin)


def _along(text: Collector, begun: dict[str, Maybe[Measure]]) -> Maybe[list[dict[str, Any]]]:
    """Show the text to all observers at once, and return samples.

    If a measure fails, the reason takes its place, and the others continue without it.
    """
    samples = SampleObserver(text)
    observers: dict[str, TextMeasure | SampleObserver] = {
        name: one for name, one in begun.items() if isinstance(one, TextMeasure)
    }
    observers[SAMPLES] = samples
    failed: dict[str, Absent] = {}
    for block in text.blocks("card"):
        for name, observer in observers.items():
            count = len(block.target)
            if observer.card_tokens is not None:
                count = min(count, observer.card_tokens - block.first)
            if count > 0 and name not in failed:
                part = block
                if count < len(block.target):
                    start = block.features[:count], block.target[:count]
                    part = Block(block.head, *start, block.first)
                outcome = _attempt(partial(observer.observe, part))
                if isinstance(outcome, Absent):
                    failed[name] = outcome
    no_samples = failed.pop(SAMPLES, None)
    begun |= failed
    return no_samples or samples.samples()


def _section(
    kind: type[Measure], measure: Maybe[Measure], loaded: LoadedModel, total: int | None
) -> Section:
    tokens, result = None, cast("Any", measure)
    if isinstance(measure, TextMeasure):
        tokens = min(filter(None, (total, measure.card_tokens)))
        result = _attempt(lambda: measure.merge([measure.part()]))
    elif isinstance(measure, WeightMeasure):
        result = _attempt(lambda: measure.measure(loaded.words))
    if isinstance(measure, Absent) or isinstance(result, Absent):
        return Section(kind.title, kind.about, result, absent=result.reason)
    rows, tile, figures = measure.rows(result), measure.tile(result), measure.figures(result)
    return Section(kind.title, kind.about, result, tokens, rows, tile, figures)


class Passage(NamedTuple):
    """Mark tokens start ≤ i < stop as one sentence, block or text; `source` is what it translates.

    Its words from `shown` on are predicted on the card.
    """

    start: int
    stop: int
    source: Tensor | None
    shown: int


class SampleObserver:
    """Pick a few pieces, spread evenly over a text, and the predictions along them."""

    card_tokens = None

    def __init__(self, text: Collector) -> None:
        self._words, self._task = text.loaded.words, text.loaded.task
        self._passages = _passages(text)
        self._targets: list[int] = []
        self._positions: dict[int, dict[str, Any]] = {}

    def observe(self, block: Block) -> None:
        """Observe the next tokens."""
        self._targets += block.target.tolist()
        for passage in self._passages:
            wanted = range(passage.shown, min(passage.stop, passage.shown + POSITIONS))
            rows = [i - block.first for i in wanted if 0 <= i - block.first < len(block.target)]
            if not rows:
                continue
            log_probs, target = block.log_probs[rows], block.target[rows]
            places = (target_ranks(log_probs, target) + 1).tolist()
            best = log_probs.topk(min(TOP, log_probs.size(1)))
            for i, (row, word) in enumerate(zip(rows, target.tolist(), strict=True)):
                top = zip(best.indices[i].tolist(), best.values[i].exp().tolist(), strict=True)
                self._positions[block.first + row] = {
                    "word": self._words.word(word),
                    "probability": float(log_probs[i, word].exp()),
                    "place": places[i],
                    "top": [{"word": self._words.word(w), "probability": p} for w, p in top],
                }

    def samples(self) -> list[dict[str, Any]]:
        """Return the pieces, once the whole text was observed, each with the words before it."""
        found = []
        for start, stop, source, shown in self._passages:
            before = self._targets[max(start, shown - BEFORE) : shown]
            positions = map(self._positions.get, range(shown, min(stop, shown + POSITIONS)))
            words = [] if source is None else source.tolist()
            said = " ".join(self._task.source_dictionary[index] for index in words)
            found.append(
                {
                    "source": None if source is None else said,
                    "before": " ".join(map(self._words.word, before)),
                    "positions": list(filter(None, positions)),
                }
            )
        return found


def _passages(collector: Collector) -> list[Passage]:
    """Return passages to show: from the start of a translation, from the middle of other text."""
    from highrank_plugins.inference.streaming_model import SentenceText

    text, rows = collector.text, collector.total
    passages, start, index = [], 0, 0
    while isinstance(text, SentenceText) and start < rows:
        item = text.dataset[index]
        stop = min(rows, start + len(item["target"]))
        if hasattr(text.model, "encoder"):
            passages.append(Passage(start, stop, item["source"], start))
        else:
            passages.append(Passage(start, stop, None, (start + stop) // 2))
        start, index = stop, index + 1
    if len(passages) < 2:
        step, source = rows // (PASSAGES + 1), passages[0].source if passages else None
        places = sorted({step * (i + 1) for i in range(PASSAGES)})
        return [Passage(0, rows, source, place) for place in places]
    count = min(PASSAGES, len(passages))
    return [passages[i * len(passages) // count] for i in range(count)]
