"""The axes of most tests, memory that is NaN, and several tiles in a mended interpreter."""

import importlib.util
import logging

import numpy as np
import pytest
import torch

from highrank_plugins.losses import nll, trust
from highrank_plugins.losses.kernels.triton import tiles
from tests.heads.cases import STRUCTURES
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
    monkeypatch.setattr(trust, "TOKENS", 4)


@pytest.fixture
def new_process(monkeypatch, caplog):
    """Let a test be the first use of its device, and of all kernels."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(nll, "_logged", set())
    monkeypatch.setattr(trust, "verdicts", {})
    trust.warn.cache_clear()
    yield
    trust.warn.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def mended_interpreter():
    """Let Triton's interpreter round as a GPU does, and waste less time."""
    if importlib.util.find_spec("triton") is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        round_to_bfloat16(patch)
        multiply_bfloat16(patch)
        prepare_language_once(patch)
        yield


def round_to_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Round float32 to the nearest even bfloat16; the interpreter cuts off."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cut_off = InterpreterBuilder.cast_impl

    def cast(self, source, dtype):
        if source.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16:
            numbers = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            return TensorHandle(numbers.view(torch.uint16).numpy(), tl.bfloat16)
        return cut_off(self, source, dtype)

    patch.setattr(InterpreterBuilder, "cast_impl", cast)


def multiply_bfloat16(patch: pytest.MonkeyPatch) -> None:
    """Multiply bfloat16 matrices as float32; the interpreter takes their bits for integers."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    multiply = InterpreterBuilder.create_dot

    def create_dot(self, a, b, *others):
        if a.dtype.scalar == tl.bfloat16:
            a, b = (self.cast_impl(x, tl.float32) for x in (a, b))
        return multiply(self, a, b, *others)

    patch.setattr(InterpreterBuilder, "create_dot", create_dot)


def prepare_language_once(patch: pytest.MonkeyPatch) -> None:
    """Replace triton.language once for a kernel's device functions: a third of the time."""
    import triton.language as tl
    from triton.runtime import interpreter

    prepare = interpreter._patch_lang

    languages_of: dict[str, list] = {}

    def prepare_once(function):
        module = function.__module__
        if module not in languages_of:
            names = function.__globals__.values()
            languages_of[module] = [m for m in names if m is tl or m is tl.core]
        if any(tl.core.is_builtin(m.load) for m in languages_of[module]):
            return prepare(function)
        return interpreter._LangPatchScope()

    patch.setattr(interpreter, "_patch_lang", prepare_once)
