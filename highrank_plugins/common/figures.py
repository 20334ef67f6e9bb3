"""Describe figures, which `reports/plots.py` draws."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Series: TypeAlias = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Lines:
    """Hold curves by label."""

    series: Mapping[str, Series]
    title: str
    axes: tuple[str, str]  # names along x and y, with units
    scale: str = "linear"  # or "log" (y), "logx", "loglog"
    dashed: tuple[str, ...] = ()  # labels of curves that are drawn dashed, such as thresholds


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
    """Draw points in groups: the runs of each system, and their mean."""

    groups: Mapping[str, Sequence[tuple[float, float]]]  # system → (x, y) of each run
    title: str
    axes: tuple[str, str]
    scale: str = "linear"
    labelled: Sequence[str] = ()  # systems whose name stands beside their mean
    connected: Sequence[Sequence[str]] = ()  # systems of one layer: a line joins their means
    frontier: Sequence[str] = ()  # systems on the frontier of cost and quality, in order
    # system without a place along x → its y, a line across the figure
    levels: Mapping[str, float] = field(default_factory=dict)


Figure: TypeAlias = Lines | Bars | Scatter
