"""Evaluate the segments of a text in order, and keep the progress for a restart."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tqdm import tqdm

from highrank_plugins.analysis.predictions import perplexity_of
from highrank_plugins.inference.saved_progress import SavedProgress
from highrank_plugins.inference.streaming_model import FairseqBatch, Segments

START: dict[str, Any] = {"position": 0, "nll": [], "tokens": 0, "state": None, "extra_state": None}
# (remaining segments, state and extra state before them) → a result after each segment
Begin = Callable[[Iterator[FairseqBatch], Any, Any], Iterator["SegmentResult"]]


class SegmentResult(NamedTuple):
    """Hold the result of one segment, and what the next one needs.

    Attributes:
        nll: Sum over the segment in nats, by each of the models.
        tokens: Number of tokens of the segment.
        state: Recurrent state after the segment, nested lists of tensors.
        extra_state: Any other tensors that the next segment needs, as nested lists.
    """

    nll: list[float]
    tokens: int
    state: Any
    extra_state: Any


def evaluate_segments(
    name: str, segments: Segments, saved: SavedProgress, begin: Begin
) -> dict[str, Any]:
    """Evaluate all segments that an earlier process has not evaluated.

    Args:
        name: Name of the evaluation in the file and on the progress bar.
        saved: Keeps the result under `name`, and is written periodically.
        begin: Called once. Both states are None at the start of the text.
    Returns:
        `nll` (sums) and `tokens` of the whole text, and the last `state`, `extra_state` and
        `position` (number of segments).
    """
    progress = saved.progress.get(name, START)
    steps = begin(
        segments.starting_at(progress["position"]), progress["state"], progress["extra_state"]
    )
    total = len(segments.chunks)
    interval = 0.5 if sys.stderr.isatty() else 30  # seconds; a log needs fewer lines
    bar = tqdm(
        total=total, initial=progress["position"], desc=name, unit="segment", mininterval=interval
    )
    with bar:
        for step in steps:
            progress = _after(progress, step)
            saved.progress[name] = progress
            saved.save_if_due()
            bar.set_postfix(ppl=f"{perplexity(progress):.2f}", refresh=False)
            bar.update()
    return progress


def perplexity(progress: dict[str, Any]) -> float:
    """Return the perplexity of the best of the models, so far."""
    return perplexity_of(min(progress["nll"]) / progress["tokens"])


def _after(progress: dict[str, Any], step: SegmentResult) -> dict[str, Any]:
    before = progress["nll"] or [0.0] * len(step.nll)
    return {
        "position": progress["position"] + 1,
        "nll": [a + b for a, b in zip(before, step.nll, strict=True)],
        "tokens": progress["tokens"] + step.tokens,
        "state": step.state,
        "extra_state": step.extra_state,
    }
