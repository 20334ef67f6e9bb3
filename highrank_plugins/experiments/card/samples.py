"""Pieces of the text with the words that a model thought most probable, for a card."""

from __future__ import annotations

from highrank_plugins.analysis import target_ranks
from highrank_plugins.experiments.card.contents import Guess, Position, Sample
from highrank_plugins.experiments.card.corpus import Passage, Seen
from highrank_plugins.experiments.card.subject import Subject

SAMPLES, POSITIONS, BEFORE, TOP = 3, 10, 20, 5  # pieces, words of each, words shown before it


def samples(subject: Subject, seen: Seen) -> list[Sample]:
    """Top words per position of a few pieces, spread evenly over the text.

    Raises:
        ValueError: NaN among the log-probabilities.
    """
    return [_sample(subject, seen, *piece) for piece in _pieces(seen.passages)]


def _pieces(passages: list[Passage]) -> list[tuple[Passage, int]]:
    """Passages and the row in each where the piece begins: for a translation the first."""
    if len(passages) == 1:
        (whole,) = passages
        step = (whole.stop - whole.start) // (SAMPLES + 1)
        starts = {whole.start + step * (i + 1) for i in range(SAMPLES)}
        return [(whole, start) for start in sorted(starts)]
    count = min(SAMPLES, len(passages))
    chosen = [passages[i * len(passages) // count] for i in range(count)]
    return [(p, p.start if p.source is not None else (p.start + p.stop) // 2) for p in chosen]


def _sample(subject: Subject, seen: Seen, passage: Passage, start: int) -> Sample:
    stop = min(passage.stop, start + POSITIONS)
    log_probs, target = seen.log_probs[start:stop], seen.target[start:stop]
    places = (target_ranks(log_probs, target) + 1).tolist()
    best = log_probs.topk(min(TOP, log_probs.size(1)))
    positions = []
    for row, word in enumerate(target.tolist()):
        guesses = zip(best.indices[row].tolist(), best.values[row].exp().tolist(), strict=True)
        top = [Guess(subject.word(index), probability) for index, probability in guesses]
        probability = float(log_probs[row, word].exp())
        positions.append(Position(subject.word(word), probability, places[row], top))
    source = None
    if passage.source is not None:
        dictionary = subject.task.source_dictionary
        source = " ".join(dictionary[index] for index in passage.source.tolist())
    before = seen.target[max(passage.start, start - BEFORE) : start].tolist()
    return Sample(source, " ".join(map(subject.word, before)), positions)
