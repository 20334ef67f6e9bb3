"""Gather the contents of a checkpoint's card: plain values, which become the page and its JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from highrank_plugins.analysis.predictions import target_ranks
from highrank_plugins.common.formatting import Figure, Lines
from highrank_plugins.measures import all_measures, base
from highrank_plugins.reports.card.page import Absent, describe, parameter_parts
from highrank_plugins.results.perplexity import training_counts

if TYPE_CHECKING:
    from highrank_plugins.inference.collector import Collector
    from highrank_plugins.inference.loading import LoadedModel

T = TypeVar("T")


Maybe: TypeAlias = T | Absent
NO_TEXT = Absent("They need a text; without DATA only the weights are measured.")
SAMPLES = "samples"
# pieces of text, words predicted in each, words shown before it, and predictions for each word
PASSAGES, POSITIONS, BEFORE, TOP = 3, 10, 20, 5
_NUMBERED = (
    "numbers (#4 is class 4): fairseq keeps the dictionary with the data, not in the checkpoint; "
    "pass its folder as DATA"
)


class Section(NamedTuple):
    """Hold a measure's result and what the page shows of it."""

    title: str
    about: str
    result: Any
    tokens: int | None = None  # that were measured, of a text
    rows: Sequence[tuple[str, str]] = ()  # none: the result does not apply to the layer
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class Card:
    """Hold everything on a card; `sections` are those of the measures, by name."""

    identity: dict[str, Any]
    configuration: dict[str, Any]
    parameters: list[dict[str, Any]]
    sections: dict[str, Section]
    samples: Maybe[list[dict[str, Any]]]

    @property
    def missing(self) -> dict[str, list[str]]:
        """Return what is not on the page, by the reason."""
        found: dict[str, list[str]] = {}
        named = [(section.title, section.result) for section in self.sections.values()]
        for title, result in [*named, ("Samples", self.samples)]:
            if isinstance(result, Absent):
                found.setdefault(result.reason, []).append(title)
        return found

    @property
    def results(self) -> dict[str, Any]:
        """Return the results by measure, as `highrank measure` writes them, or an `Absent` each."""
        return {name: section.result for name, section in self.sections.items()}

    def plain(self) -> dict[str, Any]:
        """Return the contents of the JSON file: everything except the page's texts and figures."""
        of = vars(self) | {"measures": self.results}
        names = ("identity", "configuration", "parameters", "measures", SAMPLES)
        return {name: of[name] for name in names}


@torch.no_grad()
def make_card(path: Path, data: str | None, split: str, tokens: int, command: str) -> Card:
    """Apply all measures to a checkpoint and, with `data`, to the first tokens of a split."""
    from highrank_plugins.common.provenance import versions
    from highrank_plugins.inference.collector import Collector
    from highrank_plugins.inference.loading import load_model
    from highrank_plugins.inference.streaming_model import digest_of_file

    loaded = load_model(path, data)
    words = _words(loaded, data)
    text = None if data is None else Collector(loaded, split, tokens=tokens)
    total = None if text is None else text.total
    kinds = {name: kind for name, kind in sorted(all_measures().items()) if kind.on_card}
    begun = {name: _begun(kind, words, text) for name, kind in kinds.items()}
    samples: Maybe[Any] = NO_TEXT
    if text is not None:
        begun[SAMPLES] = _Samples(text)
        _along(text, begun)
        samples = begun[SAMPLES]
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
        configuration=describe(loaded),
        parameters=parameter_parts(loaded.model, loaded.head),
        sections={name: _section(kind, begun[name], words, total) for name, kind in kinds.items()},
        samples=samples.samples() if isinstance(samples, _Samples) else samples,
    )


def _attempt(function: Callable[[], T]) -> Maybe[T]:
    """Return the result of a function, or the reason why it does not apply."""
    try:
        return function()
    except (ValueError, FloatingPointError) as error:
        return Absent(str(error))


def _words(loaded: LoadedModel, data: str | None) -> base.Words:
    """Return the layer and its words, with their counts if the data has the training text."""
    counts = None
    if data is not None:
        language = getattr(loaded.task.cfg, "target_lang", None)
        counts = training_counts(Path(data.split(":")[0]), loaded.words.head.num_classes, language)
    return loaded.words if counts is None else replace(loaded.words, counts=torch.tensor(counts))


def _begun(
    kind: type[base.Measure], words: base.Words, text: Collector | None
) -> Maybe[base.Measure]:
    def begin() -> base.Measure:
        measure = kind.for_card(words)
        if isinstance(measure, base.TextMeasure):
            measure.start(words)
        return measure

    return NO_TEXT if text is None and issubclass(kind, base.TextMeasure) else _attempt(begin)


def _along(text: Collector, begun: dict[str, Maybe[base.Measure]]) -> None:
    """Show the text to all measures at once; the reason takes the place of one that fails."""
    for block in text.blocks("card"):
        for name, measure in begun.items():
            if not isinstance(measure, base.TextMeasure):
                continue
            count, part = len(block.target), block
            if measure.card_tokens is not None:
                count = min(count, measure.card_tokens - block.first)
            if 0 < count < len(block.target):
                start = block.features[:count], block.target[:count]
                part = base.Block(block.head, *start, block.first)
            outcome = _attempt(partial(measure.observe, part)) if count > 0 else None
            if isinstance(outcome, Absent):
                begun[name] = outcome


def _section(
    kind: type[base.Measure], measure: Maybe[base.Measure], words: base.Words, total: int | None
) -> Section:
    tokens, result = None, cast("Any", measure)
    if isinstance(measure, base.TextMeasure):
        tokens = min(filter(None, (total, measure.card_tokens)))
        result = _attempt(lambda: measure.merge([measure.part()]))
    elif isinstance(measure, base.WeightMeasure):
        result = _attempt(lambda: measure.measure(words))
    if isinstance(measure, Absent) or isinstance(result, Absent):
        return Section(kind.title, kind.about, result)
    figures = [figure for figure in measure.figures(result) if _values(figure) > 2]
    return Section(measure.title, measure.about, result, tokens, measure.rows(result), figures)


def _values(figure: Figure) -> int:
    """Return the number of values in a figure; one or two say no more than the table."""
    if isinstance(figure, Lines):
        return max(len(x) for x, _ in figure.series.values())
    return sum(map(len, figure.groups.values()))


class _Samples(base.CollectingMeasure):
    """Keep the probability, the place and the best guesses of each word of a text."""

    def __init__(self, text: Collector) -> None:
        self._text = text
        self.start(text.loaded.words)

    def seen(self, block: base.Block) -> Sequence[Tensor]:
        log_probs, target = block.log_probs, block.target
        best = log_probs.topk(min(TOP, log_probs.size(1)))
        own = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
        places = target_ranks(log_probs, target) + 1
        return target, own.exp(), places, best.indices, best.values.exp()

    def samples(self) -> list[dict[str, Any]]:
        """Return a few pieces, spread evenly over the text, each with the words before it."""
        target, *columns = (of.tolist() for of in self.part())
        word, found = self.words.word, []
        for start, stop, source, shown in _passages(self._text):
            rows = slice(shown, min(stop, shown + POSITIONS))
            positions = [
                {
                    "word": word(own),
                    "probability": probability,
                    "place": place,
                    "top": [
                        {"word": word(w), "probability": p} for w, p in zip(*best, strict=True)
                    ],
                }
                for own, probability, place, *best in zip(
                    target[rows], *(column[rows] for column in columns), strict=True
                )
            ]
            before = " ".join(map(word, target[max(start, shown - BEFORE) : shown]))
            found.append({"source": source, "before": before, "positions": positions})
        return found


def _passages(collector: Collector) -> list[tuple[int, int, str | None, int]]:
    """Return parts start ≤ i < stop of the text, with a source, and the first word to predict."""
    from highrank_plugins.inference.streaming_model import SentenceText

    text, rows = collector.text, collector.total
    passages: list[tuple[int, int, str | None, int]] = []
    start = index = 0
    while isinstance(text, SentenceText) and start < rows:
        item = text.dataset[index]
        stop = min(rows, start + len(item["target"]))
        if hasattr(text.model, "encoder"):
            words = collector.loaded.task.source_dictionary
            source = " ".join(words[number] for number in item["source"].tolist())
            passages.append((start, stop, source, start))
        else:
            passages.append((start, stop, None, (start + stop) // 2))
        start, index = stop, index + 1
    if len(passages) < 2:
        step, first = rows // (PASSAGES + 1), passages[0][2] if passages else None
        return [(0, rows, first, place) for place in sorted({step, 2 * step, 3 * step})]
    count = min(PASSAGES, len(passages))
    return [passages[i * len(passages) // count] for i in range(count)]
