"""Measure the time and peak memory of a step."""

from __future__ import annotations

import ctypes
import gc
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from highrank_plugins.benchmarks.case import Case
from highrank_plugins.common.provenance import hardware

Step = Callable[[], None]


def use(device: str, threads: int) -> None:
    """Set the number of CPU threads, and the GPU of calls that name none, such as for memory."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    torch.empty(0, device=device)  # torch says what a missing device lacks
    if device.startswith("cuda:"):
        torch.cuda.set_device(device)


class Timing(NamedTuple):
    """Hold the seconds of a step: on the clock, and of all processors."""

    seconds: float
    processor: float


def alternate(steps: Sequence[Step], device: str, repeats: int) -> list[list[Timing]]:
    """Return the timings of each step, one after the other, after a warm-up of one each."""
    import torch

    timings: list[list[Timing]] = [[] for _ in steps]
    for turn in range(repeats + 1):
        for step, own in zip(steps, timings, strict=True):
            start, spent = time.perf_counter(), time.process_time()
            step()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if turn:
                end, used = time.perf_counter(), time.process_time()
                own.append(Timing(end - start, used - spent))
    return timings


def return_free_memory() -> None:
    """Return cached memory of Python and the C library to the system."""
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # GNU libc only
        libc.malloc_trim(0)


def peak_memory(step: Step, device: str) -> int | None:
    """Return the peak memory of one step, in bytes above its start.

    A GPU's allocator counts it, Linux counts the resident set; elsewhere it is None.
    """
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def kibibytes(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))

    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        return None
    before = kibibytes("VmRSS")
    step()
    return 1024 * (kibibytes("VmHWM") - before)


class MeasurementFailed(RuntimeError):
    """Report that the process of a measurement died; the message is its last line."""


class OutOfMemory(MeasurementFailed):
    """Report that the process ran out of memory: it raised an exception or was killed."""


def machine(case: Case) -> str:
    """Return hardware and versions in one line."""
    import torch

    python = f"torch {torch.__version__}, Python {platform.python_version()}"
    if case.device != "cpu":
        return f"{torch.cuda.get_device_name(case.device)}, {case.dtype}, {python}"
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' * (count != 1)}"
    return f"{hardware()['processor']}, {threads}, {case.dtype}, {python}"
