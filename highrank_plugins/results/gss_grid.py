"""Measure rank and perplexity over c and k of GSS (Parthiban et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.analysis import Correlation, pearson
from highrank_plugins.results.record import load_record, metric_of


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
