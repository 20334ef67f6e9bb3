"""Choose pieces of the text with a model's most probable words, for a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from highrank_plugins.analysis import target_ranks
from highrank_plugins.measures.base import Block
from highrank_plugins.reports.card.contents import Guess, Position, Sample

if TYPE_CHECKING:
    from highrank_plugins.inference.collector import Collector

# pieces of text, words predicted in each, words shown before it, and predictions for each word
SAMPLES, POSITIONS, BEFORE, TOP = 3, 10, 20, 5


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
        step = (whole.stop - whole.start) // (SAMPLES + 1)
        starts = {whole.start + step * (i + 1) for i in range(SAMPLES)}
        return [(whole, start) for start in sorted(starts)]
    count = min(SAMPLES, len(passages))
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
