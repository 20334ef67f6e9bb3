"""Tune the settings of an evaluation on one text, and evaluate with the best on another."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

from highrank_plugins.analysis.predictions import perplexity_of

Point = dict[str, float]  # option, without --, → its value

_OPTIONS = {"lamb": "lambda"}  # lambda is a keyword


@dataclass(frozen=True)
class Outcome:
    """Hold the score of a text at one point.

    Args:
        nll: sum over its tokens, in nats; None where the evaluation failed.
        problem: why it failed.
    """

    point: Point
    tokens: int
    nll: float | None
    problem: str = ""

    @property
    def metrics(self) -> dict[str, float | None]:
        """Return perplexity, and nats per token."""
        mean = None if self.nll is None else self.nll / self.tokens
        return {"perplexity": None if mean is None else perplexity_of(mean), "nll": mean}

    def plain(self) -> dict[str, Any]:
        """Return the outcome for a record."""
        problem = {"problem": self.problem} if self.problem else {}
        return {**self.point, **self.metrics, "tokens": self.tokens, **problem}

    def __str__(self) -> str:
        result = self.problem or f"perplexity {self.metrics['perplexity']:.2f}"
        return f"{describe(self.point)}: {result}"


@dataclass(frozen=True)
class Search:
    """Hold where points are compared: a split, or the first `tokens` of it."""

    split: str
    tokens: int | None = None


# (split, number of tokens or None for all, points) → an outcome for each point
EvaluatePoints = Callable[[str, int | None, Sequence[Point]], list[Outcome]]


def describe(point: Mapping[str, float]) -> str:
    """Return `lr 0.002, lambda 0.02`."""
    return ", ".join(f"{name} {value}" for name, value in point.items())


def points_of(values: Mapping[str, Sequence[float]], search: Search | None) -> list[Point]:
    """Return every combination."""
    points = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    if search is None and len(points) > 1:
        raise ValueError(
            f"{len(points)} combinations of values: add --grid to choose among them on the "
            "validation split, or give one of each"
        )
    return points


def tune_and_evaluate(
    evaluate: EvaluatePoints,
    points: Sequence[Point],
    split: str,
    search: Search | None,
    echo: Callable[[str], object],
) -> tuple[Outcome, list[Outcome]]:
    """Return the outcome on `split` at the best point of `search`, and the outcomes of the search.

    Args:
        points: see `points_of`.
        echo: receives a line for each result.
    """
    tried = [] if search is None else evaluate(search.split, search.tokens, points)
    for outcome in tried:
        echo(f"{search.split if search else ''}, {outcome}")
    best = _best(tried) if tried else points[0]
    (outcome,) = evaluate(split, None, [best])
    if outcome.nll is None:
        raise FloatingPointError(str(outcome))
    echo(f"{split}, {outcome} over {outcome.tokens:,} tokens")
    return outcome, tried


def _best(tried: Sequence[Outcome]) -> Point:
    sums = {number: o.nll for number, o in enumerate(tried) if o.nll is not None}
    if not sums:
        raise FloatingPointError(f"the evaluation failed at every point: {tried[0]}")
    return tried[min(sums, key=lambda number: sums[number])].point


@contextmanager
def options_named() -> Iterator[None]:
    """Replace the name of an argument at the start of an error by the option's."""
    try:
        yield
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise ValueError(f"--{_OPTIONS.get(name, name)} {rest}") from None
