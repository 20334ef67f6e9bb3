"""The axes of most tests, memory that is NaN, and several tiles in a mended interpreter."""

import importlib.util

import pytest
import torch

from highrank_plugins.losses import trust
from highrank_plugins.losses.kernels.cpp.build import Unavailable
from highrank_plugins.losses.kernels.triton import tiles
from tests.heads.cases import STRUCTURES
from tests.losses import interpreter
from tests.losses.implementations import ONCE


@pytest.fixture(params=STRUCTURES, ids=str)
def case(request):
    """Return each structure; a test with other cases has them as its parameter."""
    return request.param


@pytest.fixture(params=ONCE)
def impl(request):
    return request.param


@pytest.fixture(params=["none", "sum"])
def reduction(request):
    return request.param


@pytest.fixture(autouse=True)
def nan_in_unwritten_memory(request):
    """Make `torch.empty` give NaN while losses are tested."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    # on a GPU some operations of torch have no deterministic form
    on_gpu = request.node.get_closest_marker("gpu") is not None
    torch.use_deterministic_algorithms(True, warn_only=on_gpu)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def narrow_tiles(monkeypatch):
    """Make two tiles of the 13 classes of most tests; all tokens share a program, to save time."""
    monkeypatch.setattr(tiles, "COLUMNS", 8)


@pytest.fixture(autouse=True)
def short_trials(monkeypatch):
    """Try each kernel once in a process, on fewer tokens: the interpreter is slow."""

    def nowhere():
        raise Unavailable("no verdicts of other processes")

    monkeypatch.setattr(trust, "cache_folder", nowhere)
    monkeypatch.setattr(trust, "TOKENS", 4)


@pytest.fixture(autouse=True, scope="session")
def mended_interpreter():
    if importlib.util.find_spec("triton") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        interpreter.mend(patch)
        yield
