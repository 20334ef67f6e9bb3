"""Describe figures, which `reports/plots.py` draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Series: TypeAlias = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Lines:
    """Hold curves by label.

    Attributes:
        axes: names along x and y, with units.
        scale: "linear", "log" (y), "logx" or "loglog".
        dashed: labels of curves that are drawn dashed, such as thresholds.
    """

    series: Mapping[str, Series]
    title: str
    axes: tuple[str, str]
    scale: str = "linear"
    dashed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bars:
    """Hold a bar for each label, or several side by side: name of the bars → label → height."""

    groups: Mapping[str, Mapping[str, float]]
    title: str
    axes: tuple[str, str]
    scale: str = "linear"

    @classmethod
    def of(cls, values: Mapping[str, float], title: str, axes: tuple[str, str]) -> "Bars":
        """Return a figure with one bar for each label."""
        return cls({"": values}, title, axes)


@dataclass(frozen=True)
class Scatter:
    """Draw points in groups: the runs of each system, and their mean.

    Attributes:
        groups: system → (x, y) of each run.
        labelled: systems whose name stands beside their mean.
        connected: systems of one layer, whose means a line joins; the legend has the layer.
        frontier: systems on the frontier of cost and quality, in order.
        levels: system without a place along x → its y, a line across the figure.
    """

    groups: Mapping[str, Sequence[tuple[float, float]]]
    title: str
    axes: tuple[str, str]
    scale: str = "linear"
    labelled: Sequence[str] = ()
    connected: Sequence[Sequence[str]] = ()
    frontier: Sequence[str] = ()
    levels: Mapping[str, float] = field(default_factory=dict)


Figure: TypeAlias = Lines | Bars | Scatter
