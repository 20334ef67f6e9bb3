"""Gather the contents of a checkpoint's card."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch

from highrank_plugins.heads import Head
from highrank_plugins.measures import all_measures
from highrank_plugins.measures.base import Block, Measure, TextMeasure, WeightMeasure, Words
from highrank_plugins.reports.card.contents import Absent, Card, CardProvenance, Maybe, Section
from highrank_plugins.reports.card.describe import describe, parameter_parts
from highrank_plugins.reports.card.samples import SampleObserver

if TYPE_CHECKING:
    from highrank_plugins.inference.collector import Collector
    from highrank_plugins.inference.loading import LoadedModel

T = TypeVar("T")
SAMPLES = "samples"
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
        path: the checkpoint.
        data: directory of fairseq-preprocess; None: only the weights are measured.
        split: the text to predict.
        tokens: number of tokens to take from its start, at least 2.
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
