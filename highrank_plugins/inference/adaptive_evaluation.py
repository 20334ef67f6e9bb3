"""Run `highrank evaluate dynamic` and `cache`: point by point, on one checkpoint, resumable."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import highrank_plugins
from highrank_plugins.common.files import write_json
from highrank_plugins.common.provenance import git_state, hardware, versions
from highrank_plugins.evaluation.dynamic_evaluation import (
    Adaptation,
    GradientStatistics,
    dynamic_evaluation,
    gather_statistics,
)
from highrank_plugins.evaluation.neural_cache import NeuralCache
from highrank_plugins.inference.saved_progress import (
    SavedProgress,
    SegmentResult,
    evaluate_segments,
    perplexity,
)
from highrank_plugins.inference.streaming_model import (
    StreamingModel,
    digest_of_file,
    digest_of_tokens,
)
from highrank_plugins.inference.tuning import (
    EvaluatePoints,
    Outcome,
    Point,
    Search,
    describe,
    options_named,
    points_of,
    tune_and_evaluate,
)
from highrank_plugins.training.blocks import AdaptiveSettings, DynamicSettings

Grid = Mapping[str, Sequence[float]]  # option, without --, → the values to try
Say = Callable[[str], object]
STATISTICS = "gradient statistics"
CHUNK = 256  # tokens per forward pass of the cache; does not change the result


@dataclass(frozen=True)
class Run:
    """Describe an evaluation, whatever its kind.

    Attributes:
        checkpoint, data: see `StreamingModel.open`.
        kind: "dynamic" or "cache".
        command: the typed command, for the record.
    """

    checkpoint: Path
    data: str
    kind: str
    command: str
    settings: AdaptiveSettings

    @property
    def search(self) -> Search | None:
        """Return where to choose among several values."""
        settings = self.settings
        if not settings.grid and settings.grid_tokens is not None:
            raise ValueError("--grid-tokens has no effect without --grid; add --grid or remove it")
        return Search(settings.grid_split, settings.grid_tokens) if settings.grid else None


def run_dynamic_evaluation(run: Run, values: Grid, options: DynamicSettings, echo: Say) -> None:
    """Evaluate and write the record; the values are those of lr, eps and lambda."""
    points = _checked(values, run, partial(_adaptation, options=options))
    named = {name.replace("_", "-"): value for name, value in options.model_dump().items()}
    evaluation = Evaluation(run, values, named, more_splits=[options.train_split])
    evaluator = DynamicEvaluator(evaluation, options)
    mean_squares = evaluator.gather()
    tensors = {"tensors": len(mean_squares), "segments": evaluator.statistics.segments}
    evaluation.finish(evaluator.outcomes, points, echo, statistics=tensors)


def run_cache_evaluation(run: Run, values: Grid, echo: Say) -> None:
    """Evaluate and write the record; the values are those of theta, lambda and window."""
    points = _checked(values, run, _cache)
    evaluation = Evaluation(run, values, {})
    evaluation.finish(CacheEvaluator(evaluation).outcomes, points, echo)


def _checked(values: Grid, run: Run, check: Callable[[Point], object]) -> list[Point]:
    """Return every combination, and refuse bad ones before anything is computed."""
    points = points_of(values, run.search)
    with options_named():
        for point in points:
            check(point)
    return points


class Evaluation:
    """Hold a run with its model and its saved progress loaded.

    Args:
        values: the values to try.
        options: all other options that change the result.
        more_splits: splits besides `run`'s whose texts change the result.
    """

    def __init__(
        self, run: Run, values: Grid, options: Mapping[str, Any], more_splits: Sequence[str] = ()
    ) -> None:
        self.run, self.values, self.options = run, values, options
        self.model = StreamingModel.open(run.checkpoint, run.data, run.settings.device)
        self.checkpoint = digest_of_file(run.checkpoint)
        output = run.settings.output
        beside = output or run.checkpoint.with_suffix(f".{run.kind}")
        state = run.settings.state or beside.with_name(f"{beside.name}.state")
        for file in (state, output or state):
            file.parent.mkdir(parents=True, exist_ok=True)
        seconds = run.settings.save_seconds
        self.saved = SavedProgress(state, self._identity(more_splits), seconds)

    def _identity(self, more_splits: Sequence[str]) -> dict[str, Any]:
        split, search = self.run.settings.split, self.run.search
        chosen = [search.split] if search else []
        texts = dict.fromkeys([split, *chosen, *more_splits])
        return {
            "checkpoint": self.checkpoint,
            **{f"text of {s}": digest_of_tokens(self.model.text(s)) for s in texts},
            "--split": split,
            "--grid": [search.split, search.tokens] if search else False,
            **{f"--{name}": list(value) for name, value in self.values.items()},
            **{f"--{name}": value for name, value in self.options.items()},
            "--device": str(self.model.device),
            "torch": str(torch.__version__),
            "highrank_plugins": highrank_plugins.__version__,
        }

    def finish(
        self, evaluate: EvaluatePoints, points: Sequence[Point], echo: Say, **more: Any
    ) -> None:
        """Evaluate the points, write the record with `more` entries, and delete the progress."""
        settings, search = self.run.settings, self.run.search
        try:
            outcome, tried = tune_and_evaluate(evaluate, points, settings.split, search, echo)
        except FloatingPointError:
            self.saved.remove()  # the search cannot be resumed after this error
            raise
        grid = search and {
            "split": search.split,
            "points": [tried_one.plain() for tried_one in tried],
        }
        if settings.output is not None:
            write_json(settings.output, {**self._record(outcome), "grid": grid, **more})
        self.saved.remove()

    def _record(self, outcome: Outcome) -> dict[str, Any]:
        run, split = self.run, self.run.settings.split
        return {
            "metrics": outcome.metrics,
            "tokens": outcome.tokens,
            "signature": f"split:{split}|tokens:{outcome.tokens}|eval:{run.kind}",
            "point": outcome.point,
            "options": {"split": split, **self.options},
            "checkpoint": {
                "file": str(run.checkpoint),
                "sha256_begins": self.checkpoint,
                "arch": self.model.arch,
            },
            "command": run.command,
            "versions": versions(),
            "git": git_state(),
            "hardware": hardware(),
        }


class DynamicEvaluator:
    """Evaluate one checkpoint at many points; each starts from the trained weights."""

    def __init__(self, evaluation: Evaluation, options: DynamicSettings) -> None:
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
            adaptation = _adaptation(point, self.options)
            for scored in dynamic_evaluation(
                self.model.score, self.parameters, left, self.start, self.mean_squares,
                adaptation, state,
            ):  # fmt: skip
                yield SegmentResult([scored.nll], scored.tokens, scored.state, weights)

        segments = self.model.segments(split, self.options.bptt, tokens=tokens)
        done = evaluate_segments(name, segments, self.saved, begin)
        if math.isinf(perplexity(done)):
            raise FloatingPointError("the perplexity exceeds the range of numbers: lower --lr")
        return done


def _adaptation(point: Point, options: DynamicSettings) -> Adaptation:
    return Adaptation(point["lr"], point["eps"], point["lambda"], options.normalise)


@torch.no_grad()
def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    for tensor, value in zip(to, source, strict=True):
        tensor.copy_(value)


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
