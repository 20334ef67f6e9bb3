"""Measure the time and peak memory of a step."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

Step = Callable[[], None]


def use(device: str) -> None:
    """Make a GPU the default for calls that name none, such as counts of memory."""
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)


def alternate(steps: Sequence[Step], device: str, repeats: int) -> list[list[float]]:
    """Return seconds of each step, one after the other, after a warm-up of one each."""
    timings: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats + 1):
        for step, seconds in zip(steps, timings, strict=True):
            elapsed = _timed(step, device)
            if turn:
                seconds.append(elapsed)
    return timings


def _timed(step: Step, device: str) -> float:
    start = time.perf_counter()
    step()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def return_free_memory() -> None:
    """Return cached memory of Python and the C library to the system."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # GNU libc only
        libc.malloc_trim(0)


def peak_memory(step: Step, device: str) -> int | None:
    """Return the peak memory of one step, in bytes above its start.

    A GPU's allocator counts it, Linux counts the resident set; elsewhere it is None.
    """
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    status = Path("/proc/self/status")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        return None
    before = _kibibytes(status, "VmRSS")
    step()
    return 1024 * (_kibibytes(status, "VmHWM") - before)


def _kibibytes(status: Path, name: str) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
