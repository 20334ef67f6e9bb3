"""Describe a learned pointwise function by its slopes and its curve."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from highrank_plugins.common.names import layer_name
from highrank_plugins.heads.pointwise import Pointwise


class SlopeStatistics(NamedTuple):
    """Hold statistics of the Q slopes of a PLIF; sd divides by Q."""

    mean: float
    sd: float
    smallest: float
    largest: float


def slope_statistics(pointwise: Pointwise) -> SlopeStatistics:
    """Return mean, standard deviation and range of a PLIF's slopes, which Ganea et al. 2019 print.

    Raises:
        ValueError: another pointwise function.
    """
    slopes = pointwise.slopes()
    if slopes is None:
        raise ValueError(
            "slope_statistics needs a piecewise linear function, such as plif; "
            f"{layer_name(pointwise)} has no slopes"
        )
    return SlopeStatistics(
        float(slopes.mean()),
        float(slopes.std(correction=0)),
        float(slopes.min()),
        float(slopes.max()),
    )


@torch.no_grad()
def pointwise_curve(
    pointwise: Pointwise, low: float = -20.0, high: float = 20.0, points: int = 401
) -> tuple[Tensor, Tensor]:
    """Return z [points] from low to high, and f(z), shifted so that f is 0 where z is nearest to 0.

    A constant added to f changes no probability. The shift makes functions comparable in a plot.

    Raises:
        ValueError: low ≥ high, fewer than two points.
    """
    if not low < high or points < 2:
        raise ValueError(
            f"expected low < high and at least two points, got {low}, {high}, {points}"
        )
    z = torch.linspace(low, high, points, dtype=torch.float64)
    f = pointwise(z)
    return z, f - f[z.abs().argmin()]
