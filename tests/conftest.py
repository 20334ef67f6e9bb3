"""Tests that need what is not here are skipped, with the reason: a CUDA device, triton, a C++
compiler, time.

Without a CUDA device the kernels run in triton's interpreter.
"""

import functools
import gc
import importlib.util
import logging
import os
import signal

import pytest

from highrank_plugins.common import stop_request

# fixtures of several folders
pytest_plugins = [
    "pytester", "tests.failing_tolerances", "tests.slurm_cluster", "tests.stream_corpus",
    "tests.tiers", "tests.tiny_corpus",
]  # fmt: skip

HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported


def pytest_sessionstart() -> None:
    """Collect garbage rarely, since it visits 600,000 objects of fairseq and 10,000 tests."""
    gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip a test marked for what is missing, or about an implementation that needs it."""
    for item in items:
        about = getattr(getattr(item, "callspec", None), "params", {}).get("impl")
        for name, (is_there, reason) in NEEDS.items():
            if (about == name or item.get_closest_marker(name)) and not is_there():
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _logging():
    """Restore logging, since commands in this process switch fairseq's off."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def _signals():
    """Fail a test that leaves a signal handler behind, and spare the next ones from it."""
    numbers = (*stop_request.SIGNALS, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    after = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before
    assert not stop_request.listening()


@functools.cache
def has_compiler() -> bool:
    from highrank_plugins.losses.kernels.cpp.build import Unavailable, library

    return not isinstance(library(), Unavailable)


@functools.cache
def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


# marker, or implementation of a loss → whether it can run here, and what it needs
NEEDS = {
    "triton": (lambda: HAS_TRITON, "needs the package triton (requirements/triton.txt)"),
    "cpp": (has_compiler, "needs a C++ compiler (c++, g++ or clang++)"),
    "gpu": (has_gpu, "needs a CUDA device; torch sees none"),
}
