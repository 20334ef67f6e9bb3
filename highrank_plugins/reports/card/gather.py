"""Gather the contents of a checkpoint's card."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from highrank_plugins.analysis.predictions import target_ranks
from highrank_plugins.heads import Head
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import Block, Measure, TextMeasure, WeightMeasure, Words
from highrank_plugins.reports.card.contents import (
    Absent,
    Card,
    CardProvenance,
    Guess,
    Maybe,
    Position,
    Sample,
    Section,
)
from highrank_plugins.reports.card.describe import describe, parameter_parts

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


class Measured(NamedTuple):
    """Hold a measure, its result, and the number of tokens it has seen, if any."""

    measure: Measure
    result: Any
    tokens: int | None


@torch.no_grad()
def make_card(path: Path, data: str | None, split: str, tokens: int, command: str) -> Card:
    """Read a checkpoint and apply all measures; those that do not apply say why.

    Args:
        data: directory of fairseq-preprocess; None: only the weights are measured.
        tokens: number of tokens to take from the start of the split, at least 2.
        command: the command line, for the card's provenance.
    """
    from highrank_plugins.inference.loading import load_model

    loaded = load_model(path, data)
    head = _attempt(lambda: loaded.head)
    text = _text(loaded, head, data, split, tokens)
    observer = text if isinstance(text, Absent) else SampleObserver(text)
    found = _measure_all(loaded, head, text, observer)
    failed = found.pop(SAMPLES, None)
    pieces = observer if isinstance(observer, Absent) else _attempt(observer.samples)
    return Card(
        identity=_identity(loaded, data, split, text, command),
        configuration=describe(loaded, head),
        parameters=parameter_parts(loaded.model, head),
        results={n: f if isinstance(f, Absent) else f.result for n, f in sorted(found.items())},
        sections={n: _section(n, f) for n, f in sorted(found.items())},
        samples=failed if isinstance(failed, Absent) else pieces,
    )


def _attempt(function: Callable[[], T]) -> Maybe[T]:
    """Return the result of a function, or the reason why it does not apply."""
    try:
        return function()
    except (ValueError, FloatingPointError) as error:
        return Absent(str(error))


def _text(
    loaded: LoadedModel, head: Maybe[Head], data: str | None, split: str, tokens: int
) -> Maybe[Collector]:
    from highrank_plugins.inference.collector import Collector

    if data is None:
        return Absent("it needs a text: without DATA only the weights are measured")
    if isinstance(head, Absent):
        return head
    text = Collector(loaded, split, tokens=tokens)
    if text.total < 2:
        raise ValueError(
            f"split {split!r} has fewer than two tokens ({text.total}); a card needs at least two"
        )
    return text


def _measure_all(
    loaded: LoadedModel,
    head: Maybe[Head],
    text: Maybe[Collector],
    observer: Maybe[SampleObserver],
) -> dict[str, Maybe[Measured]]:
    """Return what each measure that belongs on a card has found, by name."""
    kinds = {name: kind for name, kind in all_measures().items() if kind.on_card}
    if isinstance(head, Absent):
        return dict.fromkeys(kinds, head)
    found: dict[str, Maybe[Measured]] = {}
    shown: dict[str, TextMeasure] = {}
    for name, kind in kinds.items():
        if issubclass(kind, WeightMeasure):
            found[name] = _attempt(partial(_of_weights, kind, loaded.words))
        elif isinstance(text, Absent):
            found[name] = text
        elif issubclass(kind, TextMeasure):
            begun = _attempt(partial(_started, kind, loaded.words))
            if isinstance(begun, Absent):
                found[name] = begun
            else:
                shown[name] = begun
    if not isinstance(text, Absent) and not isinstance(observer, Absent):
        found |= _along(text, shown, observer)
    return found


def _of_weights(kind: type[WeightMeasure], words: Words) -> Measured:
    measure = kind.for_card(words)
    return Measured(measure, measure.measure(words), None)


def _started(kind: type[TextMeasure], words: Words) -> TextMeasure:
    measure = kind.for_card(words)
    measure.start(words)
    return measure


class Observer(Protocol):
    """Receive the blocks of the text."""

    def observe(self, block: Block) -> None:
        """Observe the next tokens."""


def _along(
    text: Collector, measures: dict[str, TextMeasure], samples: SampleObserver
) -> dict[str, Maybe[Measured]]:
    """Show the text to all observers at once; if one fails, report why and continue without it."""
    failed: dict[str, Maybe[Measured]] = {}
    observers: dict[str, Observer] = {**measures, SAMPLES: samples}
    for block in text.blocks("card"):
        for name, observer in observers.items():
            limit = None if name == SAMPLES else measures[name].card_tokens
            part = _beginning(block, limit)
            if part is not None and name not in failed:
                outcome = _attempt(partial(observer.observe, part))
                if isinstance(outcome, Absent):
                    failed[name] = outcome
    done = {name: measure for name, measure in measures.items() if name not in failed}
    return failed | {
        name: _attempt(partial(_merged, measure, text.total)) for name, measure in done.items()
    }


def _beginning(block: Block, limit: int | None) -> Block | None:
    """Return the tokens of a block that are among the first N of the text, if any."""
    if limit is None or block.first + len(block.target) <= limit:
        return block
    left = limit - block.first
    if left <= 0:
        return None
    return Block(block.head, block.features[:left], block.target[:left], block.first)


def _merged(measure: TextMeasure, total: int) -> Measured:
    tokens = total if measure.card_tokens is None else min(total, measure.card_tokens)
    return Measured(measure, measure.merge([measure.part()]), tokens)


def _section(name: str, found: Maybe[Measured]) -> Section:
    if isinstance(found, Absent):
        kind = all_measures()[name]
        return Section(kind.title, kind.about, None, [], None, [], found.reason)
    measure, result = found.measure, found.result
    return Section(
        title=measure.title,
        about=measure.about,
        tokens=found.tokens,
        rows=measure.rows(result),
        tile=measure.tile(result),
        figures=measure.figures(result),
    )


def _identity(
    loaded: LoadedModel, data: str | None, split: str, text: Maybe[Collector], command: str
) -> CardProvenance:
    from highrank_plugins.common.provenance import versions
    from highrank_plugins.inference.streaming_model import digest_of_file

    return CardProvenance(
        checkpoint=loaded.path.name,
        sha256=digest_of_file(loaded.path),
        arch=loaded.arch,
        words="of the dictionary in the data" if data else _NUMBERED,
        data=data,
        split=split if data else None,
        tokens=None if isinstance(text, Absent) else text.total,
        command=command,
        versions=versions(),
    )


class Passage(NamedTuple):
    """Mark tokens start ≤ i < stop as one sentence, block or text.

    source: the ids it translates, if any.
    """

    start: int
    stop: int
    source: Tensor | None


class SampleObserver:
    """Pick a few pieces, spread evenly over a text, and the predictions along them."""

    def __init__(self, text: Collector) -> None:
        self._words = text.loaded.words
        self._task = text.loaded.task
        self._pieces = _pieces(_passages(text))
        self._targets: list[int] = []
        self._positions: dict[int, Position] = {}

    def observe(self, block: Block) -> None:
        """Observe the next tokens."""
        self._targets += block.target.tolist()
        for passage, start in self._pieces:
            first, last = start, min(passage.stop, start + POSITIONS)
            rows = [i - block.first for i in range(first, last)]
            rows = [row for row in rows if 0 <= row < len(block.target)]
            if rows:
                self._positions |= self._predicted(block, rows)

    def _predicted(self, block: Block, rows: list[int]) -> dict[int, Position]:
        log_probs, target = block.log_probs[rows], block.target[rows]
        places = (target_ranks(log_probs, target) + 1).tolist()
        best = log_probs.topk(min(TOP, log_probs.size(1)))
        found = {}
        for i, (row, word) in enumerate(zip(rows, target.tolist(), strict=True)):
            guesses = zip(best.indices[i].tolist(), best.values[i].exp().tolist(), strict=True)
            top = [Guess(self._words.word(index), probability) for index, probability in guesses]
            probability = float(log_probs[i, word].exp())
            position = Position(self._words.word(word), probability, places[i], top)
            found[block.first + row] = position
        return found

    def samples(self) -> list[Sample]:
        """Return the pieces, once the whole text was observed."""
        return [self._sample(passage, start) for passage, start in self._pieces]

    def _sample(self, passage: Passage, start: int) -> Sample:
        stop = min(passage.stop, start + POSITIONS)
        source = None
        if passage.source is not None:
            dictionary = self._task.source_dictionary
            source = " ".join(dictionary[index] for index in passage.source.tolist())
        before = self._targets[max(passage.start, start - BEFORE) : start]
        positions = [self._positions[row] for row in range(start, stop) if row in self._positions]
        return Sample(source, " ".join(map(self._words.word, before)), positions)


def _pieces(passages: list[Passage]) -> list[tuple[Passage, int]]:
    """Return passages, and where the piece of each begins: in a translation, at its start."""
    if len(passages) == 1:
        (whole,) = passages
        step = (whole.stop - whole.start) // (PASSAGES + 1)
        starts = {whole.start + step * (i + 1) for i in range(PASSAGES)}
        return [(whole, start) for start in sorted(starts)]
    count = min(PASSAGES, len(passages))
    chosen = [passages[i * len(passages) // count] for i in range(count)]
    return [(p, p.start if p.source is not None else (p.start + p.stop) // 2) for p in chosen]


def _passages(collector: Collector) -> list[Passage]:
    from highrank_plugins.inference.streaming_model import SentenceText

    text, rows = collector.text, collector.total
    if not isinstance(text, SentenceText):
        return [Passage(0, rows, None)]
    passages, start, index = [], 0, 0
    translates = hasattr(text.model, "encoder")
    while start < rows:
        item = text.dataset[index]
        stop = min(rows, start + len(item["target"]))
        passages.append(Passage(start, stop, item["source"] if translates else None))
        start, index = stop, index + 1
    return passages
