"""Run `highrank evaluate dynamic` and `cache`: point by point, on one checkpoint, resumable.

Settings may be chosen among several points on one text, for the use on another.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import highrank_plugins
from highrank_plugins.analysis.predictions import perplexity_of
from highrank_plugins.common.certificate import Mass, digest_of_tokens
from highrank_plugins.common.files import write_json
from highrank_plugins.common.provenance import conditions
from highrank_plugins.common.user_error import UserError
from highrank_plugins.evaluation.adaptation import (
    Adaptation,
    GradientStatistics,
    NeuralCache,
    dynamic_evaluation,
    gather_statistics,
)
from highrank_plugins.inference.saved_progress import (
    SavedProgress,
    SegmentResult,
    evaluate_segments,
    perplexity,
)
from highrank_plugins.inference.streaming_model import StreamingModel, digest_of_file
from highrank_plugins.training.blocks import AdaptiveSettings, DynamicSettings

Grid = Mapping[str, Sequence[float]]  # option, without --, → the values to try
Point = dict[str, float]  # option, without --, → its value
Search = tuple[str, int | None]  # where points are compared: a split, or its first tokens
Say = Callable[[str], object]
STATISTICS = "gradient statistics"
CHUNK = 256  # tokens per forward pass of the cache; does not change the result
_OPTIONS = {"lamb": "lambda"}  # lambda is a keyword


@dataclass(frozen=True)
class Run:
    """Describe an evaluation, whatever its kind."""

    checkpoint: Path
    data: str
    kind: str  # "dynamic" or "cache"
    command: str  # as it was typed, for the record
    settings: AdaptiveSettings

    @property
    def search(self) -> Search | None:
        """Return where to choose among several values."""
        settings = self.settings
        if not settings.grid and settings.grid_tokens is not None:
            raise ValueError("--grid-tokens has no effect without --grid; add --grid or remove it")
        return (settings.grid_split, settings.grid_tokens) if settings.grid else None


@dataclass(frozen=True)
class Outcome:
    """Hold the score of a text at one point."""

    point: Point
    tokens: int
    nll: float | None  # sum over the tokens, in nats; None where the evaluation failed
    problem: str = ""  # why it failed
    mass: Any = None  # a `Mass`

    @property
    def metrics(self) -> dict[str, float | None]:
        """Return perplexity, and nats per token."""
        mean = None if self.nll is None else self.nll / self.tokens
        return {"perplexity": None if mean is None else perplexity_of(mean), "nll": mean}

    def __str__(self) -> str:
        result = self.problem or f"perplexity {self.metrics['perplexity']:.2f}"
        return f"{describe(self.point)}: {result}"


def describe(point: Mapping[str, float]) -> str:
    """Return `lr 0.002, lambda 0.02`."""
    return ", ".join(f"{name} {value}" for name, value in point.items())


def points_of(values: Grid, search: Search | None, check: Callable[[Point], object]) -> list[Point]:
    """Return every combination, and refuse bad ones, by the option's name."""
    points = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    if search is None and len(points) > 1:
        raise ValueError(
            f"{len(points)} combinations of values: add --grid to choose among them on the "
            "validation split, or give one of each"
        )
    try:
        for point in points:
            check(point)
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        raise ValueError(f"--{_OPTIONS.get(name, name)} {rest}") from None
    return points


def tune_and_evaluate(
    evaluate: Callable[[str, int | None, Sequence[Point]], list[Outcome]],
    points: Sequence[Point],
    split: str,
    search: Search | None,
    echo: Say,
) -> tuple[Outcome, list[Outcome]]:
    """Return the outcome on `split` at the best point of `search`, and the outcomes of the search.

    `evaluate` scores a split, or its first tokens, at points; `echo` receives a line for each.
    """
    tried, best = [], points[0]
    if search is not None:
        tried = evaluate(*search, points)
        for outcome in tried:
            echo(f"{search[0]}, {outcome}")
        scored = [(outcome.nll, outcome) for outcome in tried if outcome.nll is not None]
        if not scored:
            raise FloatingPointError(f"the evaluation failed at every point: {tried[0]}")
        best = min(scored, key=lambda pair: pair[0])[1].point
    (outcome,) = evaluate(split, None, [best])
    if outcome.nll is None:
        raise FloatingPointError(str(outcome))
    echo(f"{split}, {outcome} over {outcome.tokens:,} tokens")
    return outcome, tried


class Evaluation:
    """Hold a run with its model and its saved progress loaded, and score texts at points.

    `values` are those to try, `options` all others that change the result; the texts of
    `more_splits` do, too.
    """

    def __init__(
        self, run: Run, values: Grid, options: Mapping[str, Any], more_splits: Sequence[str] = ()
    ) -> None:
        self.run, self.named = run, options
        self.model = StreamingModel.open(run.checkpoint, run.data, run.settings.device)
        self.checkpoint = digest_of_file(run.checkpoint)
        output = run.settings.output
        beside = output or run.checkpoint.with_suffix(f".{run.kind}")
        state = run.settings.state or beside.with_name(f"{beside.name}.state")
        for file in (state, output or state):
            file.parent.mkdir(parents=True, exist_ok=True)
        split, search = run.settings.split, run.search
        texts = dict.fromkeys([split, *(search or ())[:1], *more_splits])
        identity = {
            "checkpoint": self.checkpoint,
            **{f"text of {s}": digest_of_tokens(self.model.text(s)) for s in texts},
            "--split": split,
            "--grid": list(search) if search else False,
            **{f"--{name}": list(value) for name, value in values.items()},
            **{f"--{name}": value for name, value in options.items()},
            "certificate": True,  # earlier versions had none
            "--device": str(self.model.device),
            "torch": str(torch.__version__),
            "highrank_plugins": highrank_plugins.__version__,
        }
        self.saved = SavedProgress(state, identity, run.settings.save_seconds)

    def outcomes(self, split: str, tokens: int | None, points: Sequence[Point]) -> list[Outcome]:
        """Score a split, or the first `tokens` of it, at each point."""
        raise NotImplementedError

    def masses(self, name: str, split: str, tokens: int | None, count: int = 1) -> list[Mass]:
        """Return the masses of a text at `count` points, as the progress `name` left them."""
        text, dtype = self.model.text(split, tokens), self.model.parameters()[0].dtype
        left = self.saved.progress.get(name, {}).get("mass", [0.0] * count)
        return [Mass(text, split, dtype, worst) for worst in left]

    def finish(self, points: Sequence[Point], echo: Say, **more: Any) -> None:
        """Evaluate the points, write the record with `more` entries, and delete the progress."""
        run, split, search = self.run, self.run.settings.split, self.run.search
        try:
            outcome, tried = tune_and_evaluate(self.outcomes, points, split, search, echo)
        except (FloatingPointError, UserError):
            self.saved.remove()  # the search cannot be resumed after this error
            raise
        certificate = outcome.mass.signature(self.model.task.dictionary, f"stream+{run.kind}")
        echo(certificate)
        record = {
            "metrics": outcome.metrics,
            "tokens": outcome.tokens,
            "signature": f"split:{split}|tokens:{outcome.tokens}|eval:{run.kind}",
            "certificate": certificate,
            "point": outcome.point,
            "options": {"split": split, **self.named},
            "checkpoint": {
                "file": str(run.checkpoint),
                "sha256_begins": self.checkpoint,
                "arch": self.model.arch,
            },
            "command": run.command,
            **conditions(),
            "grid": search
            and {
                "split": search[0],
                "points": [
                    {**one.point, **one.metrics, "tokens": one.tokens}
                    | ({"problem": one.problem} if one.problem else {})
                    for one in tried
                ],
            },
        }
        if run.settings.output is not None:
            write_json(run.settings.output, record | more)
        self.saved.remove()

    def _keep(self, name: str, done: dict[str, Any]) -> None:
        self.saved.progress[name] = done | {"state": None, "extra_state": None}
        self.saved.save()


def _name(split: str, tokens: int | None, points: str) -> str:
    return f"{split}{'' if tokens is None else f' to {tokens}'}, {points}"


def run_dynamic_evaluation(run: Run, values: Grid, options: DynamicSettings, echo: Say) -> None:
    """Evaluate and write the record; the values are those of lr, eps and lambda."""
    points = points_of(values, run.search, lambda point: _adaptation(point, options))
    evaluation = DynamicEvaluator(run, values, options)
    mean_squares = evaluation.gather()
    tensors = {"tensors": len(mean_squares), "segments": evaluation.statistics.segments}
    evaluation.finish(points, echo, statistics=tensors)


def run_cache_evaluation(run: Run, values: Grid, echo: Say) -> None:
    """Evaluate and write the record; the values are those of theta, lambda and window."""
    points = points_of(values, run.search, _cache)
    CacheEvaluator(run, values, {}).finish(points, echo)


class DynamicEvaluator(Evaluation):
    """Evaluate one checkpoint at many points; each starts from the trained weights."""

    def __init__(self, run: Run, values: Grid, options: DynamicSettings) -> None:
        named = {name.replace("_", "-"): value for name, value in options.model_dump().items()}
        super().__init__(run, values, named, more_splits=[options.train_split])
        self.options = options
        self.parameters = self.model.parameters()
        self.start = [p.detach().clone() for p in self.parameters]
        self.statistics = GradientStatistics(self.parameters)
        self.mean_squares: list[Tensor] = []

    def gather(self) -> list[Tensor]:
        """Return MS of the training text, which every point needs."""
        options, sums, score = self.options, self.statistics.sums, self.model.score
        split, streams = options.train_split, options.train_batch_size
        segments = self.model.segments(split, options.bptt, count=streams)

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            _copy(sums, extra_state or sums)
            steps = gather_statistics(score, self.parameters, left, self.statistics, state)
            for nll, tokens, after in steps:
                yield SegmentResult([nll], tokens, after, sums)

        progress = evaluate_segments(STATISTICS, segments, self.saved, begin)
        self.statistics.segments = progress["position"]
        self.mean_squares = self.statistics.finish(options.statistic)
        return self.mean_squares

    def outcomes(self, split: str, tokens: int | None, points: Sequence[Point]) -> list[Outcome]:
        outcomes, progress = [], self.saved.progress
        for point in points:
            name = _name(split, tokens, describe(point))
            (mass,) = [self.model.mass] = self.masses(name, split, tokens)
            if "problem" not in progress.get(name, {}):
                try:
                    self._keep(name, self._evaluate(name, split, tokens, point))
                except FloatingPointError as error:
                    self._keep(name, {"problem": str(error), "nll": [None], "tokens": 0})
            found = progress[name]
            problem = found.get("problem", "")
            outcomes.append(Outcome(point, found["tokens"], found["nll"][0], problem, mass))
        return outcomes

    def _evaluate(self, name: str, split: str, tokens: int | None, point: Point) -> dict[str, Any]:
        weights, mass = [p.detach() for p in self.parameters], self.model.mass

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            _copy(weights, extra_state or self.start)
            adaptation = _adaptation(point, self.options)
            for nll, counted, after in dynamic_evaluation(
                self.model.score, self.parameters, left, self.start, self.mean_squares,
                adaptation, state,
            ):  # fmt: skip
                yield SegmentResult([nll], counted, after, weights, [mass.worst] if mass else [])

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


class CacheEvaluator(Evaluation):
    """Evaluate one checkpoint at many points: the model runs once, every point has a cache."""

    def outcomes(self, split: str, tokens: int | None, points: Sequence[Point]) -> list[Outcome]:
        chosen = describe(points[0]) if len(points) == 1 else f"{len(points)} caches"
        name = _name(split, tokens, chosen)
        caches = [_cache(point) for point in points]
        masses = self.masses(name, split, tokens, len(caches))

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            for cache, (hidden, words) in zip(caches, extra_state or [], strict=bool(extra_state)):
                cache.hidden, cache.words = (t.to(self.model.device) for t in (hidden, words))
            for batch in left:
                hidden, target, log_probs, state = self.model.observe(batch, state)
                rows = self.model.distributions(batch, hidden, masses[0])
                whole = [dict(rows) for _ in caches]  # by each cache
                mixed = zip(caches, whole, strict=True)
                scores = [cache.log_probs(hidden, target, log_probs, of) for cache, of in mixed]
                nll = [-float(score.double().sum()) for score in scores]
                if not all(map(math.isfinite, nll)):
                    raise FloatingPointError(f"the loss of a segment is {nll}: the model is broken")
                for mass, score, of in zip(masses, scores, whole, strict=True) if rows else ():
                    mass.add(score[[*of]], target[[*of]], torch.stack([*of.values()]))
                pairs = [[cache.hidden, cache.words] for cache in caches]
                yield SegmentResult(nll, len(target), state, pairs, [m.worst for m in masses])

        segments = self.model.segments(split, CHUNK, tokens=tokens)
        done = evaluate_segments(name, segments, self.saved, begin)
        self._keep(name, done)
        found = zip(points, done["nll"], masses, strict=True)
        return [Outcome(point, done["tokens"], nll, mass=mass) for point, nll, mass in found]


def _cache(point: Point) -> NeuralCache:
    return NeuralCache(point["theta"], point["lambda"], int(point["window"]))
