"""What the parts of an output layer do along a text: components, gates, the pointwise function."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank_plugins.analysis import (
    ComponentUse,
    GateSharpness,
    SlopeStatistics,
    component_use,
    gate_sharpness,
    pointwise_curve,
    slope_statistics,
)
from highrank_plugins.heads import Head, Mixtape
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import PLIF, POINTWISE
from highrank_plugins.heads.prior_mixture import PriorMixture

from .collector import Collector


@dataclass(frozen=True)
class Components:
    """Each is None where the layer has no such part; `absent` says which and why.

    prior: of MoS and MoC. gates: of Mixtape by word class. slopes: of PLIF. curve: z and f(z) of
    any pointwise function but the identity.
    """

    tokens: int
    prior: ComponentUse | None
    gates: list[GateSharpness] | None
    slopes: SlopeStatistics | None
    curve: tuple[list[float], list[float]] | None
    absent: dict[str, str]


def component_measures(collector: Collector, ends: Sequence[int] = ()) -> Components | None:
    """One pass over the text of a collector; see `component_use` and `gate_sharpness`.

    Args:
        ends: where classes of words end, by their place in the dictionary; for Mixtape.
    Returns:
        None in processes other than the first.
    Raises:
        ValueError: ends that do not increase within the frequent words, or for another head.
    """
    head = collector.head
    gated = isinstance(head, Mixtape) and head.components > 1
    if ends and not gated:
        raise ValueError(f"--ends: {type(head).__name__} has no gates of classes")
    parts = collector.processes.gather(_observe(collector, ends))
    if parts is None:
        return None
    tokens = sum(part[0] for part in parts)
    log_prior = torch.cat([x for part in parts for x in part[1]]) if parts[0][1] else None
    slopes = slope_statistics(head.pointwise) if isinstance(head.pointwise, PLIF) else None
    return Components(
        tokens=tokens,
        prior=None if log_prior is None else component_use(log_prior),
        gates=_mean_gates([x for part in parts for x in part[2]]) if gated else None,
        slopes=slopes,
        curve=_curve(head),
        absent=_absent(head, gated),
    )


Gates = tuple[int, list[GateSharpness]]


def _observe(collector: Collector, ends: Sequence[int]) -> tuple[int, list[Tensor], list[Gates]]:
    """Number of tokens; log π [n, K] and the sharpness of gates, of each block."""
    head, tokens = collector.head, 0
    priors: list[Tensor] = []
    gates: list[Gates] = []
    for block in collector.blocks("components"):
        tokens += len(block.target)
        with torch.no_grad():
            if isinstance(head, PriorMixture):
                priors.append(head.log_prior(block.features, head.tensors()).cpu())
        if isinstance(head, Mixtape) and head.components > 1:
            gates.append((len(block.target), gate_sharpness(head, block.features, ends)))
    return tokens, priors, gates


def _mean_gates(parts: list[Gates]) -> list[GateSharpness]:
    """Means over all tokens from those over blocks."""
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
    if POINTWISE.name_of(head.pointwise) == "identity":
        return None
    z, f = pointwise_curve(deepcopy(head.pointwise).cpu())
    return z.tolist(), f.tolist()


def _absent(head: Head, gated: bool) -> dict[str, str]:
    kind = f"{HEADS.name_of(head)} with pointwise function {POINTWISE.name_of(head.pointwise)}"
    reasons = {
        "prior": None if isinstance(head, PriorMixture) else "only MoS and MoC have a prior",
        "gates": None if gated else "only a Mixtape of several components has gates",
        "slopes": None if isinstance(head.pointwise, PLIF) else "only PLIF has slopes",
    }
    return {name: f"{reason}; this is {kind}" for name, reason in reasons.items() if reason}
