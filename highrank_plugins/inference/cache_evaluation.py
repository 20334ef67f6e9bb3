"""Run `highrank evaluate cache`: a checkpoint with a neural cache, all points in one pass."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from highrank_plugins.evaluation.neural_cache import NeuralCache
from highrank_plugins.inference.adaptive_evaluation import Evaluation, Grid, Run
from highrank_plugins.inference.segments import SegmentResult, evaluate_segments
from highrank_plugins.inference.tuning import Outcome, Point, describe, options_named, points_of

CHUNK = 256  # tokens per forward pass; does not change the result


def run_cache_evaluation(run: Run, values: Grid, echo: Callable[[str], object]) -> None:
    """Evaluate and write the record.

    Args:
        values: of theta, lambda and window.
    """
    points = points_of(values, run.search)
    with options_named():  # refuses bad options before anything is computed
        for point in points:
            _cache(point)
    evaluation = Evaluation(run, values, {})
    evaluator = CacheEvaluator(evaluation)
    evaluation.finish(evaluator.outcomes, points, echo)


class CacheEvaluator:
    """Evaluate one checkpoint at many points: the model runs once, every point has a cache."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.model, self.saved = evaluation.model, evaluation.saved

    def outcomes(self, split: str, tokens: int | None, points: Sequence[Point]) -> list[Outcome]:
        """Score a split, or the first `tokens` of it, at each point."""
        chosen = describe(points[0]) if len(points) == 1 else f"{len(points)} caches"
        name = f"{split}{'' if tokens is None else f' to {tokens}'}, {chosen}"
        caches = [_cache(point) for point in points]

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            for cache, (hidden, words) in zip(caches, extra_state or [], strict=bool(extra_state)):
                cache.hidden, cache.words = (t.to(self.model.device) for t in (hidden, words))
            for batch in left:
                step = self._step(batch, state, caches)
                state = step.state
                yield step

        segments = self.model.segments(split, CHUNK, tokens=tokens)
        done = evaluate_segments(name, segments, self.saved, begin)
        self.saved.progress[name] = done | {"state": None, "extra_state": None}
        self.saved.save()
        sums = zip(points, done["nll"], strict=True)
        return [Outcome(point, done["tokens"], nll) for point, nll in sums]

    def _step(self, batch: Any, state: Any, caches: Sequence[NeuralCache]) -> SegmentResult:
        hidden, target, log_probs, after = self.model.observe(batch, state)
        scores = [cache.log_probs(hidden, target, log_probs) for cache in caches]
        nll = [-float(score.double().sum()) for score in scores]
        if not all(map(math.isfinite, nll)):
            raise FloatingPointError(f"the loss of a segment is {nll}: the model is broken")
        return SegmentResult(
            nll, len(target), after, [[cache.hidden, cache.words] for cache in caches]
        )


def _cache(point: Point) -> NeuralCache:
    return NeuralCache(point["theta"], point["lambda"], int(point["window"]))
