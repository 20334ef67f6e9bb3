"""Measure trained models as the papers do; each module has the name of its measure.

Importing this package is cheap: names are known without their modules, which import torch.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from highrank_plugins.measures.base import Measure


def measure_names() -> list[str]:
    """Return the names of all measures, sorted."""
    names = {path.stem for path in Path(__file__).parent.glob("*.py")}
    return sorted(names - {"__init__", "base"})


def find_measure(name: str) -> "type[Measure]":
    """Return the class of a measure."""
    from highrank_plugins.measures.base import MEASURES

    if name in measure_names():
        import_module(f"{__name__}.{name}")
    return MEASURES.find(name)


def all_measures() -> "dict[str, type[Measure]]":
    """Return the classes of all measures by name."""
    return {name: find_measure(name) for name in measure_names()}
