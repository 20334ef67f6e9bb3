"""What a model predicts along a split, from the true words before each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.experiments.card.contents import Absent, Maybe
from highrank_plugins.experiments.card.subject import Subject

if TYPE_CHECKING:
    from highrank_plugins.collect.texts import Text

ROWS = 500  # tokens that go through the model at a time


class Passage(NamedTuple):
    """Rows start ≤ i < stop are one sentence, block or text; with the ids it translates, if any."""

    start: int
    stop: int
    source: Tensor | None


@dataclass(frozen=True)
class Seen:
    """The first n predictions of a split: features [n, F], target [n], log_probs [n, M]."""

    features: Tensor
    target: Tensor
    log_probs: Tensor
    passages: list[Passage]


@torch.no_grad()
def see(subject: Subject, split: str, tokens: int) -> Maybe[Seen]:
    """Run the model along the first `tokens` tokens of a split; n × M numbers are held.

    Raises:
        ValueError: the split has fewer than two tokens, or sentences that are too long.
        OSError: there is no such split.
    """
    if subject.task is None:
        return Absent("it needs a text: without --data only the weights are looked at")
    if isinstance(subject.head, Absent):
        return subject.head
    text = _text(subject, split, tokens)
    features, targets, state = [], [], None
    for index in range(len(text.counts)):
        step = text.step(index, state)
        features.append(step.features)
        targets.append(step.target)
        state = step.state
        if sum(map(len, targets)) >= tokens:
            break
    inputs, target = torch.cat(features)[:tokens], torch.cat(targets)[:tokens]
    if len(target) < 2:
        raise ValueError(f"split {split!r} has {len(target)} token; a card needs two or more")
    log_probs = subject.head.log_probs(inputs)
    broken = log_probs.isnan().any(1)
    if broken.any():
        row = int(broken.nonzero()[0])
        return Absent(f"the log-probabilities of token {row} are NaN: the checkpoint has diverged")
    return Seen(inputs, target, log_probs, _passages(text, len(target)))


def _text(subject: Subject, split: str, tokens: int) -> Text:
    from highrank_plugins.collect.streaming_model import TASK, StreamingModel
    from highrank_plugins.collect.texts import SentenceText, StreamText

    model, task = subject.model, subject.task
    if not (hasattr(model, "bptt_features") and subject.config.task._name == TASK):
        return SentenceText(model, task, split, ROWS)
    stream = StreamingModel(model, task, subject.arch, torch.device("cpu"))
    return StreamText(stream, stream.segments(split, ROWS, tokens=tokens))


def _passages(text: Text, rows: int) -> list[Passage]:
    from highrank_plugins.collect.texts import SentenceText

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
