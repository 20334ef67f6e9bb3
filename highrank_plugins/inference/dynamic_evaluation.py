"""Run `highrank evaluate dynamic`: dynamic evaluation, point by point, resumable."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.evaluation.dynamic_evaluation import (
    Adaptation,
    GradientStatistics,
    dynamic_evaluation,
    gather_statistics,
)
from highrank_plugins.inference.adaptive_evaluation import Evaluation, Grid, Run
from highrank_plugins.inference.segments import SegmentResult, evaluate_segments, perplexity
from highrank_plugins.inference.tuning import Outcome, Point, describe, options_named, points_of

STATISTICS = "gradient statistics"


@dataclass(frozen=True)
class DynamicOptions:
    """Hold the options that all points share; see `evaluation.dynamic_evaluation`.

    Args:
        train_split: the text of the gradient statistics.
        bptt: tokens of a segment, of every stream.
        train_batch_size: streams of the training text.
        statistic: "rms" or "sum".
        normalise: "mean" or "sum".
    """

    train_split: str = "train"
    bptt: int = 5
    train_batch_size: int = 100
    statistic: str = "rms"
    normalise: str = "mean"


def run_dynamic_evaluation(
    run: Run, values: Grid, options: DynamicOptions, echo: Callable[[str], object]
) -> None:
    """Evaluate and write the record.

    Args:
        values: of lr, eps and lambda.
    """
    points = points_of(values, run.search)
    with options_named():  # refuses bad options before anything is computed
        for point in points:
            _adaptation(point, options)
    named = {name.replace("_", "-"): value for name, value in asdict(options).items()}
    evaluation = Evaluation(run, values, named, more_splits=[options.train_split])
    evaluator = DynamicEvaluator(evaluation, options)
    mean_squares = evaluator.gather()
    tensors = {"tensors": len(mean_squares), "segments": evaluator.statistics.segments}
    evaluation.finish(evaluator.outcomes, points, echo, statistics=tensors)


class DynamicEvaluator:
    """Evaluate one checkpoint at many points; each starts from the trained weights."""

    def __init__(self, evaluation: Evaluation, options: DynamicOptions) -> None:
        self.model, self.saved = evaluation.model, evaluation.saved
        self.options = options
        self.parameters = self.model.parameters()
        self.start = [p.detach().clone() for p in self.parameters]
        self.statistics = GradientStatistics(self.parameters)
        self.mean_squares: list[Tensor] = []

    def gather(self) -> list[Tensor]:
        """Return MS of the training text, which every point needs."""
        options, sums = self.options, self.statistics.sums
        segments = self.model.segments(
            options.train_split, options.bptt, count=options.train_batch_size
        )

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            _copy(sums, extra_state or sums)
            for scored in gather_statistics(
                self.model.score, self.parameters, left, self.statistics, state
            ):
                yield SegmentResult([scored.nll], scored.tokens, scored.state, sums)

        progress = evaluate_segments(STATISTICS, segments, self.saved, begin)
        self.statistics.segments = progress["position"]
        self.mean_squares = self.statistics.finish(options.statistic)
        return self.mean_squares

    def outcomes(self, split: str, tokens: int | None, points: Sequence[Point]) -> list[Outcome]:
        """Score a split, or the first `tokens` of it, at each point."""
        return [self._outcome(split, tokens, point) for point in points]

    def _outcome(self, split: str, tokens: int | None, point: Point) -> Outcome:
        name = f"{split}{'' if tokens is None else f' to {tokens}'}, {describe(point)}"
        progress = self.saved.progress
        if "problem" not in progress.get(name, {}):
            try:
                done = self._evaluate(name, split, tokens, point)
                progress[name] = done | {"state": None, "extra_state": None}
            except FloatingPointError as error:
                progress[name] = {"problem": str(error), "nll": [None], "tokens": 0}
            self.saved.save()
        found = progress[name]
        return Outcome(point, found["tokens"], found["nll"][0], found.get("problem", ""))

    def _evaluate(self, name: str, split: str, tokens: int | None, point: Point) -> dict[str, Any]:
        weights = [p.detach() for p in self.parameters]

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            _copy(weights, extra_state or self.start)
            for scored in dynamic_evaluation(
                self.model.score,
                self.parameters,
                left,
                self.start,
                self.mean_squares,
                _adaptation(point, self.options),
                state,
            ):
                yield SegmentResult([scored.nll], scored.tokens, scored.state, weights)

        segments = self.model.segments(split, self.options.bptt, tokens=tokens)
        done = evaluate_segments(name, segments, self.saved, begin)
        if math.isinf(perplexity(done)):
            raise FloatingPointError("the perplexity exceeds the range of numbers: lower --lr")
        return done


def _adaptation(point: Point, options: DynamicOptions) -> Adaptation:
    return Adaptation(point["lr"], point["eps"], point["lambda"], options.normalise)


@torch.no_grad()
def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    for tensor, value in zip(to, source, strict=True):
        tensor.copy_(value)
