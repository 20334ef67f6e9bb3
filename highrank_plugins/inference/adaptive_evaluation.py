"""Run `highrank evaluate dynamic` and `cache`: point by point, on one checkpoint, resumable.

Settings may be chosen among several points on one text, for the use on another.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
from highrank_plugins.common.names import flag
from highrank_plugins.common.provenance import conditions, typed_command
from highrank_plugins.common.user_error import UserError
from highrank_plugins.evaluation.adaptation import (
    Adaptation,
    GradientStatistics,
    NeuralCache,
    dynamic_evaluation,
    gather_statistics,
)
from highrank_plugins.inference.streaming_model import (
    SavedProgress,
    StreamingModel,
    Walk,
    digest_of_file,
)
from highrank_plugins.training.blocks import AdaptiveSettings, DynamicSettings

Grid = Mapping[str, Sequence[float]]  # option, without --, → the values to try
Point = dict[str, float]  # option, without --, → its value
CHUNK = 256  # tokens per forward pass of the cache, which do not change the result


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
    length = CHUNK
    options: BlockOptions

    def __init__(
        self, checkpoint: Path, data: str, settings: AdaptiveSettings, values: Grid,
        options: BlockOptions,
    ) -> None:  # fmt: skip
        for name in () if settings.grid else ("grid_split", "grid_tokens"):
            if getattr(settings, name) != AdaptiveSettings.model_fields[name].default:
                raise ValueError(f"{flag(name)} has no effect without --grid; remove it")
        self.file, self.settings, self.options = checkpoint, settings, options
        self.search = (settings.grid_split, settings.grid_tokens) if settings.grid else None
        self.points = self._points(values)
        self.model = StreamingModel.open(checkpoint, data, settings.device)
        self.digest = digest_of_file(checkpoint)
        self.named = {n.replace("_", "-"): value for n, value in options.model_dump().items()}
        self.more: dict[str, Any] = {}  # entries of the record
        beside = settings.output or checkpoint.with_suffix(f".{self.kind}")
        beside.parent.mkdir(parents=True, exist_ok=True)
        state = beside.with_name(f"{beside.name}.state")
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

    def prepare(self) -> None:
        """Compute what every point needs."""

    def follow(self, walk: Walk, point: Point, mass: Mass) -> None:
        """Score a text at a point."""
        raise NotImplementedError

    def outcome(self, split: str, tokens: int | None, point: Point) -> Outcome:
        """Score a split, or the first `tokens` of it, at a point."""
        text, dtype = self.model.text(split, tokens), self.model.parameters()[0].dtype
        name = f"{split}{'' if tokens is None else f' to {tokens}'}, {describe(point)}"
        walk = Walk(self.saved, name, self.model.segments(split, self.length, tokens=tokens))
        mass = Mass(text, split, dtype, walk.done["mass"])
        try:
            self.follow(walk, point, mass)
            if math.isinf(walk.perplexity):
                raise FloatingPointError("the perplexity exceeds the range of numbers: lower --lr")
        except FloatingPointError as error:
            self.saved.progress.pop(name, None)
            return Outcome(point, 0, None, mass, str(error))
        walk.end()
        return Outcome(point, walk.done["tokens"], walk.done["nll"], mass)

    def run(self, echo: Callable[[str], object]) -> None:
        """Score the split at the best point of the search, and write the record."""
        split, tried, best = self.settings.split, list[Outcome](), self.points[0]
        self.prepare()
        try:
            if self.search is not None:
                for point in self.points:
                    tried.append(self.outcome(*self.search, point))
                    echo(f"{self.search[0]}, {tried[-1]}")
                scored = [(outcome.nll, outcome) for outcome in tried if outcome.nll is not None]
                if not scored:
                    raise FloatingPointError(f"the evaluation failed at every point: {tried[0]}")
                best = min(scored, key=lambda pair: pair[0])[1].point
            outcome = self.outcome(split, None, best)
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


class DynamicEvaluator(Evaluation):
    """Evaluate one checkpoint at many points; each starts from the trained weights."""

    kind = "dynamic"
    options: DynamicSettings

    def made(self, point: Point) -> Adaptation:
        return Adaptation(point["lr"], point["eps"], point["lambda"], self.options.normalise)

    def prepare(self) -> None:
        """Gather MS of the training text."""
        options, self.parameters = self.options, self.model.parameters()
        self.length = options.bptt
        self.start = [p.detach().clone() for p in self.parameters]
        streams = options.train_batch_size
        segments = self.model.segments(options.train_split, options.bptt, count=streams)
        statistics = GradientStatistics(self.parameters)
        walk = Walk(self.saved, "gradient statistics", segments)
        _copy(statistics.sums, walk.done["extra_state"] or statistics.sums)
        given = self.model.score, self.parameters, walk, statistics, walk.done["state"]
        for scored in gather_statistics(*given):
            after = {"state": scored.state, "extra_state": statistics.sums}
            walk.add(scored.nll, scored.tokens, **after)
        statistics.segments = walk.done["position"]
        self.mean_squares = statistics.finish(options.statistic)
        tensors = {"tensors": len(self.mean_squares), "segments": statistics.segments}
        self.more["statistics"] = tensors

    def follow(self, walk: Walk, point: Point, mass: Mass) -> None:
        self.model.mass, weights = mass, [p.detach() for p in self.parameters]
        _copy(weights, walk.done["extra_state"] or self.start)
        for scored in dynamic_evaluation(
            self.model.score, self.parameters, walk, self.start, self.mean_squares,
            self.made(point), walk.done["state"],
        ):  # fmt: skip
            after = {"state": scored.state, "extra_state": weights}
            walk.add(scored.nll, scored.tokens, **after, mass=mass.worst)


@torch.no_grad()
def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    for tensor, value in zip(to, source, strict=True):
        tensor.copy_(value)


class CacheEvaluator(Evaluation):
    """Evaluate one checkpoint at many points; each has a cache of its own."""

    kind = "cache"

    def made(self, point: Point) -> NeuralCache:
        return NeuralCache(point["theta"], point["lambda"], int(point["window"]))

    def prepare(self) -> None:
        """Refuse windows that a text does not fill, for which the model alone scores it."""
        for split, tokens in filter(None, (self.search, (self.settings.split, None))):
            size, most = len(self.model.text(split, tokens)), max(p["window"] for p in self.points)
            if most >= size:
                raise ValueError(f"--window {most}: {split} has {size} tokens and never fills it")

    def follow(self, walk: Walk, point: Point, mass: Mass) -> None:
        cache, state = self.made(point), walk.done["state"]
        if pair := walk.done["extra_state"]:
            cache.hidden, cache.words = (tensor.to(self.model.device) for tensor in pair)
        for batch in walk:
            hidden, target, log_probs, state = self.model.observe(batch, state)
            rows = self.model.distributions(batch, hidden, mass)
            scores = cache.log_probs(hidden, target, log_probs, rows)
            nll = -float(scores.double().sum())
            if not math.isfinite(nll):
                raise FloatingPointError(
                    f"the loss of a segment is {nll}: lower --theta, or the model is broken"
                )
            if rows:
                mass.add(scores[[*rows]], target[[*rows]], torch.stack([*rows.values()]))
            after = {"state": state, "extra_state": [cache.hidden, cache.words]}
            walk.add(nll, len(target), **after, mass=mass.worst)
