"""Measure the parts of an output layer along a text: components, gates, pointwise function."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

import torch
from torch import Tensor

from highrank_plugins.analysis.components import (
    ComponentUse,
    GateSharpness,
    SlopeStatistics,
    component_use,
    gate_sharpness,
    pointwise_curve,
    slope_statistics,
)
from highrank_plugins.common.formatting import Bars, Figure, Lines
from highrank_plugins.common.names import layer_name
from highrank_plugins.heads import Head
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.measures import base

MONITORED_TOKENS = 64  # tokens of a training batch to measure, if weights depend on the class
CARD_ENDS = (10, 100, 1000)  # ends of the groups of frequent words on a card
BINS, STEEPEST = 24, 4.0  # bins of the histogram of slopes, and the largest start of the last bin


@dataclass(frozen=True)
class Components:
    """Hold measures of a layer's parts; a missing part is None, and `absent` gives the reason.

    prior: of MoS and MoC. gates: of Mixtape by word class. slopes: of PLIF. curve: z and f(z) of
    any pointwise function but the identity.
    """

    tokens: int
    prior: ComponentUse | None
    gates: list[GateSharpness] | None
    slopes: SlopeStatistics | None
    curve: tuple[list[float], list[float]] | None
    absent: dict[str, str]


class _Gates(NamedTuple):
    """Average the sharpness of gates over a number of tokens."""

    tokens: int
    groups: list[GateSharpness]


class _Part(NamedTuple):
    """Hold the number of tokens, log π [n, K] of each block, and the sharpness of gates of each."""

    tokens: int
    priors: list[Tensor]
    gates: list[_Gates]


@base.register_measure("components")
class ComponentMeasure(base.TextMeasure):
    """Measure what a layer mixes, and its pointwise function.

    It measures the prior (MoS, MoC), the gates by word class (Mixtape), slopes and curve (PLIF, …).
    Mixtape is slow: pass --tokens 2000.
    """

    title = "Components, gates and pointwise function"
    about = (
        "The entropy of the weights π of components is 0 where a token has one component, and "
        "log K where all have the same weight. The entropy of their mean is 0 if all tokens have "
        "the same component: a collapse. Mixtape's frequent words have their own gates; the others "
        "share one. The curve of the pointwise function is shifted to f(0) = 0."
    )
    hidden = ("curve",)
    card_tokens = 512

    def __init__(
        self,
        ends: Annotated[
            tuple[int, ...],
            "Ranks at which groups of frequent words end, e.g. 100,1000, for Mixtape's gates.",
        ] = (),
    ) -> None:
        self.ends = ends

    @classmethod
    def for_card(cls, words: base.Words) -> Self:
        gates = _gates_of_nothing(words.head)
        frequent = 0 if gates is None else gates.size(-1) - 1
        return cls(tuple(end for end in CARD_ENDS if end < frequent))

    def start(self, words: base.Words, dtype: torch.dtype = torch.float32) -> None:
        super().start(words, dtype)
        if not all(values.isfinite().all() for values in words.head.pointwise.parameters()):
            raise ValueError(
                "the pointwise function has parameters that are not finite: training has "
                "diverged, use an earlier checkpoint"
            )
        self._gated = _gates_of_nothing(words.head) is not None
        if self.ends and not self._gated:
            raise ValueError(
                f"--ends needs a layer with gates per word, such as Mixtape; "
                f"{layer_name(words.head)} has none"
            )
        self._tokens = 0
        self._priors: list[Tensor] = []
        self._gates: list[_Gates] = []

    @torch.no_grad()
    def observe(self, block: base.Block) -> None:
        head, count = block.head, len(block.target)
        self._tokens += count
        if self._gated:
            groups = gate_sharpness(head, block.features, self.ends)
            self._gates.append(_Gates(count, groups))
        elif not head.weights_by_class:
            prior = head.log_weights(block.features, block.target, head.tensors())
            if prior is not None:
                self._priors.append(prior.cpu())

    def part(self) -> _Part:
        return _Part(self._tokens, self._priors, self._gates)

    def merge(self, parts: Sequence[_Part]) -> Components:
        head = self.words.head
        priors = [prior for part in parts for prior in part.priors]
        gates = [found for part in parts for found in part.gates]
        return Components(
            tokens=sum(part.tokens for part in parts),
            prior=component_use(torch.cat(priors)) if priors else None,
            gates=_mean_gates(gates) if gates else None,
            slopes=None if head.pointwise.slopes() is None else slope_statistics(head.pointwise),
            curve=_curve(head),
            absent=_absent(head, bool(priors), bool(gates)),
        )

    def figures(self, result: Components) -> list[Figure]:
        found: list[Figure] = []
        if (use := result.prior) is not None:
            labels = [str(k) for k in range(1, len(use.mean_prior) + 1)]
            columns = {"mean πₖ": use.mean_prior, "share on top": use.top_share}
            groups = {
                name: dict(zip(labels, column.tolist(), strict=True))
                for name, column in columns.items()
            }
            found.append(Bars(groups, "Use of the components", ("component k", "share")))
        if result.gates is not None:
            largest = {f"{g.first:,}–{g.last - 1:,}": g.largest for g in result.gates}
            axes = "words by frequency", "mean largest π"
            found.append(Bars.of(largest, "Gates", axes))
        if result.curve is not None:
            z, _ = result.curve
            ends = (z[0], z[-1])
            name = POINTWISE.name_of(self.words.head.pointwise)
            series: dict[str, Any] = {name: result.curve, "identity": (ends, ends)}
            axes = "z", "f(z) − f(0)"
            found.append(Lines(series, "Pointwise function", axes, dashed=("identity",)))
        slopes = self.words.head.pointwise.slopes()
        if result.slopes is not None and slopes is not None:
            top = min(STEEPEST, float(slopes.max()))
            edges = torch.linspace(0, top, BINS + 1, dtype=torch.float64)
            counts = torch.histogram(slopes.double().clamp(max=top).cpu(), edges).hist.tolist()
            starts = (f"{edge:.2f}" for edge in edges.tolist())
            cells = dict(zip(starts, counts, strict=False))
            found.append(Bars.of(cells, "Slopes", ("slope from", "number of cells")))
        return found

    def rows(self, result: Components) -> base.Rows:
        rows = [("tokens", f"{result.tokens:,}")]
        if result.prior is not None:
            highest = math.log(len(result.prior.mean_prior))
            rows += [
                ("entropy of the prior", f"{result.prior.entropy:.4f} of {highest:.4f} nats"),
                ("entropy of its mean", f"{result.prior.overall_entropy:.4f} nats"),
            ]
        for group in result.gates or []:
            name = f"words {group.first:,}–{group.last - 1:,}"
            value = f"entropy {group.entropy:.4f} nats, largest π {group.largest:.4f} on average"
            rows.append((f"gates of {name}", value))
        if result.slopes is not None:
            slopes = result.slopes
            value = f"{slopes.mean:.3f} ± {slopes.sd:.3f}, {slopes.smallest:.3g} to "
            rows.append(("slopes", f"{value}{slopes.largest:.3g}"))
        return [*rows, *((f"no {name}", reason) for name, reason in result.absent.items())]

    @classmethod
    def monitor(cls, batch: base.MonitoredBatch) -> base.Snapshot:
        snapshot, head = base.Snapshot(), batch.head
        slopes = head.pointwise.slopes()
        if slopes is not None:
            found = slope_statistics(head.pointwise)._asdict()
            snapshot.scalars |= {f"slope_{name}": value for name, value in found.items()}
            snapshot.histograms["slopes"] = slopes
        tensors = head.tensors()
        some = batch.some(MONITORED_TOKENS if head.weights_by_class else sys.maxsize)
        weights = None if some is None else head.log_weights(*some, tensors)
        if weights is not None and weights.size(1) > 1:
            use = component_use(weights)
            snapshot.component_use = use.mean_prior
            snapshot.scalars |= {
                "component_entropy": use.entropy,
                "component_entropy_overall": use.overall_entropy,
                "component_least": len(use.mean_prior) * float(use.mean_prior.min()),
            }
        some, gates = batch.some(MONITORED_TOKENS), _gates_of_nothing(head)
        if some is None or gates is None:
            return snapshot
        for group in gate_sharpness(head, some[0]):
            name = "frequent" if group.first < gates.size(-1) - 1 else "rare"
            snapshot.scalars[f"gate_entropy_{name}"] = group.entropy
            snapshot.scalars[f"gate_largest_{name}"] = group.largest
        return snapshot


def _gates_of_nothing(head: Head) -> Tensor | None:
    """Return gates [0, K, S + 1] without tokens, whose shape has the number of classes, or None."""
    return head.class_gates(head.weight.new_zeros(0, head.feature_dim), head.tensors())


def _mean_gates(parts: list[_Gates]) -> list[GateSharpness]:
    """Return means over all tokens from means over blocks."""
    total = sum(count for count, _ in parts)
    return [
        GateSharpness(
            groups[0].first,
            groups[0].last,
            sum(n * g.entropy for (n, _), g in zip(parts, groups, strict=True)) / total,
            sum(n * g.largest for (n, _), g in zip(parts, groups, strict=True)) / total,
        )
        for groups in zip(*(found for _, found in parts), strict=True)
    ]


def _curve(head: Head) -> tuple[list[float], list[float]] | None:
    if head.pointwise.is_identity:
        return None
    z, f = pointwise_curve(deepcopy(head.pointwise).cpu())
    return z.tolist(), f.tolist()


def _absent(head: Head, prior: bool, gates: bool) -> dict[str, str]:
    kind = f"{HEADS.name_of(head)} with pointwise function {POINTWISE.name_of(head.pointwise)}"
    no_prior = "Head.log_weights of the layer returns None"
    if head.weights_by_class:
        no_prior = "the weights of its components depend on the class"
    elif type(head).log_weights is Head.log_weights:
        no_prior = "the layer does not override Head.log_weights, as MoS and MoC do"
    reasons = {
        "prior": None if prior else no_prior,
        "gates": None if gates else "it has no gates per class, as Mixtape has",
        "slopes": None if head.pointwise.slopes() is not None else "it has no slopes, as plif has",
    }
    return {name: f"{reason}; this is {kind}" for name, reason in reasons.items() if reason}
