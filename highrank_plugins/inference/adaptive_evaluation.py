"""Run `highrank evaluate dynamic` and `cache`: point by point, on one checkpoint, resumable.

Settings may be chosen among several points on one text, for the use on another.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import highrank_plugins
from highrank_plugins.analysis.predictions import perplexity_of
from highrank_plugins.common.blocks import BlockOptions
from highrank_plugins.common.certificate import Mass, digest_of_tokens
from highrank_plugins.common.files import write_json
from highrank_plugins.common.provenance import conditions, typed_command
from highrank_plugins.common.user_error import UserError
from highrank_plugins.evaluation.adaptation import (
    Adaptation,
    GradientStatistics,
    NeuralCache,
    dynamic_evaluation,
    gather_statistics,
)
from highrank_plugins.inference.saved_progress import SavedProgress, SegmentResult, perplexity
from highrank_plugins.inference.streaming_model import StreamingModel, digest_of_file
from highrank_plugins.training.blocks import AdaptiveSettings, DynamicSettings

Grid = Mapping[str, Sequence[float]]  # option, without --, → the values to try
Point = dict[str, float]  # option, without --, → its value
CHUNK = 256  # tokens per forward pass of the cache; does not change the result


class Outcome(NamedTuple):
    """Hold the score of a text at one point."""

    point: Point
    tokens: int
    nll: float | None  # sum over the tokens, in nats; None where the evaluation failed
    mass: Mass
    problem: str = ""  # why it failed

    @property
    def metrics(self) -> dict[str, float | None]:
        """Return perplexity, and nats per token."""
        mean = None if self.nll is None else self.nll / self.tokens
        return {"perplexity": None if mean is None else perplexity_of(mean), "nll": mean}

    def __str__(self) -> str:
        result = self.problem or f"perplexity {self.metrics['perplexity']:.2f}"
        return f"{describe(self.point)}: {result}"


def describe(point: Point) -> str:
    """Return `lr 0.002, lambda 0.02`."""
    return ", ".join(f"{name} {value}" for name, value in point.items())


class Evaluation:
    """Score texts at points, with the model of a checkpoint and the progress saved before.

    `values` are those to try, `options` all others that change the result.
    """

    kind = ""
    options: BlockOptions

    def __init__(
        self, checkpoint: Path, data: str, settings: AdaptiveSettings, values: Grid,
        options: BlockOptions,
    ) -> None:  # fmt: skip
        if settings.grid_tokens is not None and not settings.grid:
            raise ValueError("--grid-tokens has no effect without --grid; add --grid or remove it")
        self.file, self.settings, self.options = checkpoint, settings, options
        self.search = (settings.grid_split, settings.grid_tokens) if settings.grid else None
        self.points = self._points(values)
        self.model = StreamingModel.open(checkpoint, data, settings.device)
        self.digest = digest_of_file(checkpoint)
        self.named = {n.replace("_", "-"): value for n, value in options.model_dump().items()}
        self.more: dict[str, Any] = {}  # entries of the record
        output = settings.output
        beside = output or checkpoint.with_suffix(f".{self.kind}")
        state = settings.state or beside.with_name(f"{beside.name}.state")
        for file in (state, output or state):
            file.parent.mkdir(parents=True, exist_ok=True)
        splits = [settings.split, *(self.search or ())[:1], self.named.get("train-split")]
        identity = {
            "checkpoint": self.digest,
            **{
                f"text of {s}": digest_of_tokens(self.model.text(s))
                for s in dict.fromkeys(filter(None, splits))
            },
            "--split": settings.split,
            "--grid": list(self.search) if self.search else False,
            **{f"--{name}": list(value) for name, value in values.items()},
            **{f"--{name}": value for name, value in self.named.items()},
            "certificate": True,  # earlier versions had none
            "--device": str(self.model.device),
            "torch": str(torch.__version__),
            "highrank_plugins": highrank_plugins.__version__,
        }
        self.saved = SavedProgress(state, identity, settings.save_seconds)

    def _points(self, values: Grid) -> list[Point]:
        """Return every combination, and refuse bad ones, by the option's name."""
        points = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
        if self.search is None and len(points) > 1:
            raise ValueError(
                f"{len(points)} combinations of values: add --grid to choose among them on the "
                "validation split, or give one of each"
            )
        try:
            for point in points:
                self.made(point)
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            raise ValueError(f"--{'lambda' if name == 'lamb' else name} {rest}") from None
        return points

    def made(self, point: Point) -> Any:
        """Return what adapts at a point."""
        raise NotImplementedError

    def outcomes(self, split: str, tokens: int | None, points: Sequence[Point]) -> list[Outcome]:
        """Score a split, or the first `tokens` of it, at each point."""
        raise NotImplementedError

    def masses(self, name: str, split: str, tokens: int | None, count: int = 1) -> list[Mass]:
        """Return the masses of a text at `count` points, as the progress `name` left them."""
        text, dtype = self.model.text(split, tokens), self.model.parameters()[0].dtype
        left = self.saved.progress.get(name, {}).get("mass", [0.0] * count)
        return [Mass(text, split, dtype, worst) for worst in left]

    def run(self, echo: Callable[[str], object]) -> None:
        """Score the split at the best point of the search, and write the record."""
        split, tried, best = self.settings.split, list[Outcome](), self.points[0]
        try:
            if self.search is not None:
                tried = self.outcomes(*self.search, self.points)
                for outcome in tried:
                    echo(f"{self.search[0]}, {outcome}")
                scored = [(outcome.nll, outcome) for outcome in tried if outcome.nll is not None]
                if not scored:
                    raise FloatingPointError(f"the evaluation failed at every point: {tried[0]}")
                best = min(scored, key=lambda pair: pair[0])[1].point
            (outcome,) = self.outcomes(split, None, [best])
            if outcome.nll is None:
                raise FloatingPointError(str(outcome))
        except (FloatingPointError, UserError):
            self.saved.remove()  # the search cannot be resumed after this error
            raise
        echo(f"{split}, {outcome} over {outcome.tokens:,} tokens")
        certificate = outcome.mass.signature(self.model.task.dictionary, f"stream+{self.kind}")
        echo(certificate)
        if self.settings.output is not None:
            write_json(self.settings.output, self._record(outcome, certificate, tried))
        self.saved.remove()

    def _record(self, outcome: Outcome, certificate: str, tried: list[Outcome]) -> dict[str, Any]:
        split = self.settings.split
        points = [
            {**one.point, **one.metrics, "tokens": one.tokens}
            | ({"problem": one.problem} if one.problem else {})
            for one in tried
        ]
        return {
            "metrics": outcome.metrics,
            "tokens": outcome.tokens,
            "signature": f"split:{split}|tokens:{outcome.tokens}|eval:{self.kind}",
            "certificate": certificate,
            "point": outcome.point,
            "options": {"split": split, **self.named},
            "checkpoint": {
                "file": str(self.file),
                "sha256_begins": self.digest,
                "arch": self.model.arch,
            },
            "command": typed_command(),
            **conditions(),
            "grid": self.search and {"split": self.search[0], "points": points},
            **self.more,
        }

    def _keep(self, name: str, done: dict[str, Any]) -> None:
        self.saved.progress[name] = done | {"state": None, "extra_state": None}
        self.saved.save()


def _name(split: str, tokens: int | None, points: str) -> str:
    return f"{split}{'' if tokens is None else f' to {tokens}'}, {points}"


class DynamicEvaluator(Evaluation):
    """Evaluate one checkpoint at many points; each starts from the trained weights."""

    kind = "dynamic"

    options: DynamicSettings

    def made(self, point: Point) -> Adaptation:
        return Adaptation(point["lr"], point["eps"], point["lambda"], self.options.normalise)

    def run(self, echo: Callable[[str], object]) -> None:
        """Gather MS of the training text, which every point needs; then as for each evaluation."""
        options, score, self.parameters = self.options, self.model.score, self.model.parameters()
        self.start = [p.detach().clone() for p in self.parameters]
        split, streams = options.train_split, options.train_batch_size
        segments = self.model.segments(split, options.bptt, count=streams)
        statistics = GradientStatistics(self.parameters)
        sums = statistics.sums

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            _copy(sums, extra_state or sums)
            for nll, tokens, after in gather_statistics(
                score, self.parameters, left, statistics, state
            ):
                yield SegmentResult([nll], tokens, after, sums)

        progress = self.saved.evaluate("gradient statistics", segments, begin)
        statistics.segments = progress["position"]
        self.mean_squares = statistics.finish(options.statistic)
        tensors = {"tensors": len(self.mean_squares), "segments": statistics.segments}
        self.more["statistics"] = tensors
        super().run(echo)

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
            outcomes.append(Outcome(point, found["tokens"], found["nll"][0], mass, problem))
        return outcomes

    def _evaluate(self, name: str, split: str, tokens: int | None, point: Point) -> dict[str, Any]:
        weights, mass = [p.detach() for p in self.parameters], self.model.mass

        def begin(left: Iterator[Any], state: Any, extra_state: Any) -> Iterator[SegmentResult]:
            _copy(weights, extra_state or self.start)
            for nll, counted, after in dynamic_evaluation(
                self.model.score, self.parameters, left, self.start, self.mean_squares,
                self.made(point), state,
            ):  # fmt: skip
                yield SegmentResult([nll], counted, after, weights, [mass.worst] if mass else [])

        segments = self.model.segments(split, self.options.bptt, tokens=tokens)
        done = self.saved.evaluate(name, segments, begin)
        if math.isinf(perplexity(done)):
            raise FloatingPointError("the perplexity exceeds the range of numbers: lower --lr")
        return done


@torch.no_grad()
def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    for tensor, value in zip(to, source, strict=True):
        tensor.copy_(value)


class CacheEvaluator(Evaluation):
    """Evaluate one checkpoint at many points: the model runs once, every point has a cache."""

    kind = "cache"

    def made(self, point: Point) -> NeuralCache:
        return NeuralCache(point["theta"], point["lambda"], int(point["window"]))

    def outcomes(self, split: str, tokens: int | None, points: Sequence[Point]) -> list[Outcome]:
        chosen = describe(points[0]) if len(points) == 1 else f"{len(points)} caches"
        name = _name(split, tokens, chosen)
        caches = list(map(self.made, points))
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
        done = self.saved.evaluate(name, segments, begin)
        self._keep(name, done)
        found = zip(points, done["nll"], masses, strict=True)
        return [Outcome(point, done["tokens"], nll, mass) for point, nll, mass in found]
