"""Measure rank and perplexity over c and k of GSS (Parthiban et al. 2021)."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm import tqdm

from highrank_plugins.analysis import Correlation, pearson, perplexity_of, spectrum
from highrank_plugins.common.names import layer_name
from highrank_plugins.heads import Head, build_pointwise
from highrank_plugins.results.record import load_record, metric_of

if TYPE_CHECKING:
    from highrank_plugins.inference.collector import Collector


@dataclass(frozen=True)
class GridPoint:
    """Hold Press rank in float32, and perplexity, at c and k."""

    c: float
    k: float
    rank: float
    perplexity: float


def grid_of_records(paths: Sequence[Path], rank: str, perplexity: str) -> list[GridPoint]:
    """Return one point for each record of a model trained with its own c and k.

    Args:
        rank, perplexity: names of metrics.
    """
    return [
        GridPoint(*_c_and_k(path), metric_of(path, rank), metric_of(path, perplexity))
        for path in paths
    ]


def _c_and_k(path: Path) -> tuple[float, float]:
    train = load_record(path).get("config", {}).get("train", {})
    try:
        return float(train["head_gss_c"]), float(train["head_gss_k"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{path}: its configuration has no train.head_gss_c and train.head_gss_k; a grid needs "
            "models that were trained with --head-gss-c and --head-gss-k"
        ) from None


def correlation(points: Sequence[GridPoint]) -> Correlation | None:
    """Correlate rank and perplexity; None for fewer than three points, or if one is constant."""
    ranks, perplexities = [p.rank for p in points], [p.perplexity for p in points]
    if len(points) < 3 or len(set(ranks)) == 1 or len(set(perplexities)) == 1:
        return None
    return pearson(ranks, perplexities)


def grid_of_swapped(
    collector: "Collector", cs: Sequence[float], ks: Sequence[float]
) -> list[GridPoint]:
    """Replace the pointwise function of one checkpoint by each GSS, without training.

    A model trained with one function is worse with another: this shows how the rank depends on c
    and k, but does not replace models trained with each.
    """
    if not collector.head.linear_logits:
        raise ValueError(
            "--checkpoint: GSS can only replace the function of a single softmax; this model's "
            f"layer is {layer_name(collector.head)}"
        )
    points = [(c, k) for c in cs for k in ks]
    heads = [_with_gss(collector.head, c, k) for c, k in points]
    blocks = [(block.features, block.target) for block in collector.blocks("features")]
    return [
        _measured(head, blocks, c, k)
        for (c, k), head in tqdm(list(zip(points, heads, strict=True)), "grid", unit="point")
    ]


def _with_gss(head: Head, c: float, k: float) -> Head:
    """Return a head that shares the parameters of another."""
    new = deepcopy(head, {id(parameter): parameter for parameter in head.parameters()})
    new.pointwise = build_pointwise("gss", c=c, k=k)
    return new.eval()


@torch.no_grad()
def _measured(head: Head, blocks: list[tuple[Tensor, Tensor]], c: float, k: float) -> GridPoint:
    nats = 0.0

    def log_probs() -> Iterator[Tensor]:
        nonlocal nats
        for features, target in blocks:
            block = head.log_probs(features)
            nats -= float(block.gather(1, target.unsqueeze(1)).double().sum())
            yield block

    found = spectrum(log_probs(), torch.float32)
    return GridPoint(c, k, found.press_rank(), perplexity_of(nats / found.shape[0]))
