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
from highrank_plugins.heads.pointwise import PLIF
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.measures import base

MONITORED_TOKENS = 64  # tokens of a training batch to measure, if weights depend on the class
CARD_ENDS = (10, 100, 1000)  # ends of the groups of frequent words on a card
ROWS = 16  # tokens whose logits are looked up in PLIF's cells together


@dataclass(frozen=True)
class Components:
    """Hold measures of a layer's parts; a part that it does not have is None.

    prior: of MoS and MoC. gates: of Mixtape by word class. slopes and their use: of PLIF. curve: z
    and f(z) of any pointwise function but the identity.
    """

    tokens: int
    prior: ComponentUse | None
    gates: list[GateSharpness] | None
    slopes: SlopeStatistics | None
    curve: tuple[list[float], list[float]] | None
    slope_use: SlopeUse | None = None


class SlopeUse(NamedTuple):
    """Hold what a text meets of PLIF's cells, and what it loses without the learnt slopes.

    It is known of a run that drew its slopes itself.
    """

    visited: float  # share of the cells in which some logit lies
    ppl: float
    ppl_untrained: float  # with the first slopes of the run
    moved: float  # root mean square distance from the first slopes of the run


class _Seen(NamedTuple):
    """Hold what a process has seen."""

    priors: list[Tensor]  # log π [n, K] of each block
    gates: list[tuple[int, list[GateSharpness]]]  # tokens of each block and means over them
    visited: Tensor | None  # whether some logit lay in each of PLIF's cells [Q]
    nll: list[float]  # Σ −log P with own and with untrained slopes
    tokens: list[int]  # of each block


@base.register_measure("components")
class ComponentMeasure(base.TextMeasure):
    """Measure what a layer mixes, and its function.

    It measures the prior (MoS, MoC), the gates by word class (Mixtape), slopes and curve (PLIF, …).
    Mixtape is slow: pass --tokens 2000.
    """

    title = "Components, gates and pointwise function"
    about = (
        "The entropy of weights π is 0 where a token, or a word by its gate, has one component, "
        "and log K where all have the same weight. The entropy of their mean is 0 if all tokens "
        "have the same component: a collapse. The curve is shifted to f(0) = 0."
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
        gates = gates_of_nothing(words.head)
        frequent = 0 if gates is None else gates.size(-1) - 1
        return cls(tuple(end for end in CARD_ENDS if end < frequent))

    def start(self, words: base.Words, dtype: torch.dtype = torch.float32) -> None:
        super().start(words, dtype)
        if not all(values.isfinite().all() for values in words.head.pointwise.parameters()):
            raise ValueError(
                "the pointwise function has parameters that are not finite: training has "
                "diverged, use an earlier checkpoint"
            )
        gates = gates_of_nothing(words.head)
        self._gated = gates is not None
        self._contexts = 1 if gates is None else gates.size(1)
        if self.ends and not self._gated:
            raise ValueError(
                f"--ends needs a layer with gates per word, such as Mixtape; "
                f"{layer_name(words.head)} has none"
            )
        head, visited = words.head, None
        is_read = isinstance(head.pointwise, PLIF) and (head.has_logits or head.mixes)
        if words.first is not None and is_read:
            visited = torch.zeros(head.pointwise.knots, dtype=torch.bool)
            first: Any = words.first().pointwise
            self._first = first.to(head.pointwise.slope_logits)
        self._seen = _Seen([], [], visited, [0.0, 0.0], [])

    @torch.no_grad()
    def observe(self, block: base.Block) -> None:
        head, seen = block.head, self._seen
        seen.tokens.append(len(block.target))
        if seen.visited is not None:
            self._visit(block, seen.visited)
        if self._gated:
            groups = gate_sharpness(head, block.features, self.ends)
            seen.gates.append((len(block.target), groups))
        elif not head.weights_by_class:
            prior = head.log_weights(block.features, block.target, head.tensors())
            if prior is not None:
                seen.priors.append(prior.cpu())

    def _visit(self, block: base.Block, visited: Tensor) -> None:
        """Mark the cells of a block's logits, and add the losses of its tokens."""
        head, own, f = block.head, block.head.tensors(), block.head.pointwise
        first = {f"pointwise.{name}": t for name, t in self._first.tensors().items()}
        for x, y in zip(block.features.split(ROWS), block.target.split(ROWS), strict=True):
            z = head.chunk_logits(x, own, RandomState()).double()
            at = ((z + f.bound) / f.cell_width).clamp(0, f.knots - 1).long().unique()
            visited[at.cpu()] = True
            for i, tensors in enumerate((own, own | first)):
                loss, *_ = head.chunk_nll(x, y, tensors, RandomState(), False)
                self._seen.nll[i] += float(loss.sum())

    def part(self) -> _Seen:
        return self._seen

    def merge(self, parts: Sequence[_Seen]) -> Components:
        head = self.words.head
        priors = [prior for part in parts for prior in part.priors]
        gates = [found for part in parts for found in part.gates]
        curve = None
        if not head.pointwise.is_identity:
            z, fz = pointwise_curve(deepcopy(head.pointwise).cpu())
            curve = z.tolist(), fz.tolist()
        tokens, use = sum(sum(part.tokens) for part in parts), None
        if visited := [part.visited for part in parts if part.visited is not None]:
            own, new = (math.exp(sum(part.nll[i] for part in parts) / tokens) for i in (0, 1))
            f: Any = head.pointwise
            moved = (f.slopes() - self._first.slopes()).square().mean().sqrt()
            share = torch.stack(visited).any(0).double().mean()
            use = SlopeUse(float(share), own, new, float(moved))
        return Components(
            tokens=tokens,
            prior=component_use(torch.cat(priors)) if priors else None,
            gates=_mean_gates(gates) if gates else None,
            slopes=None if head.pointwise.slopes() is None else slope_statistics(head.pointwise),
            curve=curve,
            slope_use=use,
        )

    def figures(self, result: Components) -> list[Figure]:
        found: list[Figure] = []
        if (use := result.prior) is not None:
            columns = {"mean πₖ": use.mean_prior, "share on top": use.top_share}
            groups = {
                name: {str(k): share for k, share in enumerate(column.tolist(), 1)}
                for name, column in columns.items()
            }
            axes, level = ("component k", "share"), {"1/K": 1 / len(use.mean_prior)}
            found.append(Bars(groups, "Use of the components", axes, levels=level))
        if result.gates is not None:
            largest = {"": {f"{g.first:,}–{g.last - 1:,}": g.largest for g in result.gates}}
            axes, level = ("words by frequency", "mean largest π"), {"1/K": 1 / self._contexts}
            found.append(Bars(largest, "Gates", axes, ends=(0, 1), levels=level))
        if result.curve is not None:
            z, _ = result.curve
            ends = (z[0], z[-1])
            name = layer_name(self.words.head.pointwise)
            series: dict[str, Any] = {name: result.curve, "identity": (ends, ends)}
            axes = "z", "f(z) − f(0)"
            found.append(Lines(series, "Pointwise function", axes, dashed=("identity",)))
        return found

    def rows(self, result: Components) -> base.Rows:
        rows: base.Rows = []
        use = result.prior
        count = self._contexts if use is None else len(use.mean_prior)
        most = f"of log {count} = {math.log(count):.4f} nats"
        if use is not None:
            rows += [
                ("entropy of the weights π", f"{use.entropy:.4f} {most}"),
                ("entropy of their mean", f"{use.overall_entropy:.4f} {most}"),
            ]
        for group in result.gates or []:
            name = f"words {group.first:,}–{group.last - 1:,}"
            value = f"entropy {group.entropy:.4f} {most}; largest π {group.largest:.4f}"
            rows.append((f"gates of {name}", value))
        if result.slopes is not None:
            slopes = result.slopes
            value = f"{slopes.mean:.3f} ± {slopes.sd:.3f}, {slopes.smallest:.3g} to "
            rows.append(("slopes", f"{value}{slopes.largest:.3g}"))
        if (found := result.slope_use) is not None:
            value = f"{found.ppl:.2f}; with untrained slopes {found.ppl_untrained:.2f}"
            rows += [("cells visited", f"{found.visited:.2%}"), ("ppl of these tokens", value)]
            rows.append(("slopes moved from their start by", f"{found.moved:.3f} (rms)"))
        if result.curve is not None and not rows:
            rows.append(("function", layer_name(self.words.head.pointwise)))
        return rows

    @classmethod
    def monitor(cls, batch: base.MonitoredBatch) -> base.Snapshot:
        snapshot: base.Snapshot = {}
        head = batch.head
        slopes = head.pointwise.slopes()
        if slopes is not None:
            found = slope_statistics(head.pointwise)._asdict()
            snapshot |= {f"slope_{name}": value for name, value in found.items()}
            snapshot["slopes"] = slopes
        tensors = head.tensors()
        some = batch.some(MONITORED_TOKENS if head.weights_by_class else sys.maxsize)
        weights = None if some is None else head.log_weights(*some, tensors)
        if weights is not None and weights.size(1) > 1:
            use = component_use(weights)
            snapshot |= {
                "component_use": use.mean_prior,
                "component_entropy": use.entropy,
                "component_entropy_overall": use.overall_entropy,
                "component_least": len(use.mean_prior) * float(use.mean_prior.min()),
            }
        some, gates = batch.some(MONITORED_TOKENS), gates_of_nothing(head)
        if some is None or gates is None:
            return snapshot
        for group in gate_sharpness(head, some[0]):
            name = "frequent" if group.first < gates.size(-1) - 1 else "rare"
            snapshot[f"gate_entropy_{name}"] = group.entropy
            snapshot[f"gate_largest_{name}"] = group.largest
        return snapshot


def gates_of_nothing(head: Head) -> Tensor | None:
    """Return gates [0, K, S + 1] without tokens, whose shape has the number of classes, or None."""
    return head.class_gates(head.weight.new_zeros(0, head.feature_dim), head.tensors())


def _mean_gates(parts: list[tuple[int, list[GateSharpness]]]) -> list[GateSharpness]:
    """Return means over all tokens from means over blocks."""
    counts = [tokens for tokens, _ in parts]

    def mean(values: list[float]) -> float:
        return sum(n * value for n, value in zip(counts, values, strict=True)) / sum(counts)

    return [
        GateSharpness(of[0].first, of[0].last, mean([g.entropy for g in of]),
                      mean([g.largest for g in of]))
        for of in zip(*(groups for _, groups in parts), strict=True)
    ]  # fmt: skip
