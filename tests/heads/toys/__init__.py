"""A structure and a pointwise function that the package does not have."""

import importlib
import sys

import pytest

from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE

TOYS = [(HEADS, "residual"), (POINTWISE, "bend")]


@pytest.fixture
def toys(monkeypatch):
    """Register both toys for one test, without fairseq's architectures and options."""
    for registry, name in TOYS:
        monkeypatch.setattr(registry, "_listeners", [])
        importlib.import_module(f"{__name__}.{name}")
    yield
    for registry, name in TOYS:
        registry.unregister(name)
        del sys.modules[f"{__name__}.{name}"]
