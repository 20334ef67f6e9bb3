"""One walk along the segments of a text, which may be interrupted anywhere."""

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tqdm import tqdm

from highrank_plugins.analysis import perplexity_of
from highrank_plugins.inference.saved_progress import SavedProgress
from highrank_plugins.inference.streaming_model import Batch, Segments

START: dict[str, Any] = {"position": 0, "nll": [], "tokens": 0, "state": None, "held": None}
# (segments left, the state before them, what was held then) → a step after each of them
Begin = Callable[[Iterator[Batch], Any, Any], Iterator["Step"]]


class Step(NamedTuple):
    """After one segment: its summed nll in nats by each of the models, its number of tokens.

    `state` and `held` are what is needed to go on from here: nested lists of tensors.
    """

    nll: list[float]
    tokens: int
    state: Any
    held: Any


def walk(name: str, segments: Segments, progress: SavedProgress, begin: Begin) -> dict[str, Any]:
    """Steps through all segments, from where an earlier process was stopped.

    Args:
        name: what it is called in the file and beside the bar.
        progress: keeps under `name` what is returned, and is written now and then.
        begin: called once. State and held are None at the start of the text.
    Returns:
        `nll` (sums, as in `Step`) and `tokens` of the whole text, and the last `state`, `held`,
        and `position` (number of segments).
    """
    reached = progress.reached.get(name, START)
    steps = begin(segments.starting_at(reached["position"]), reached["state"], reached["held"])
    total = len(segments.chunks)
    interval = 0.5 if sys.stderr.isatty() else 30  # seconds; a log needs fewer lines
    bar = tqdm(
        total=total, initial=reached["position"], desc=name, unit="segment", mininterval=interval
    )
    with bar:
        for step in steps:
            reached = _after(reached, step)
            progress.reached[name] = reached
            progress.save_if_due()
            bar.set_postfix(ppl=f"{perplexity(reached):.2f}", refresh=False)
            bar.update()
    return reached


def perplexity(reached: dict[str, Any]) -> float:
    """Of the best of the models, so far."""
    return perplexity_of(min(reached["nll"]) / reached["tokens"])


def _after(reached: dict[str, Any], step: Step) -> dict[str, Any]:
    before = reached["nll"] or [0.0] * len(step.nll)
    return {
        "position": reached["position"] + 1,
        "nll": [a + b for a, b in zip(before, step.nll, strict=True)],
        "tokens": reached["tokens"] + step.tokens,
        "state": step.state,
        "held": step.held,
    }
