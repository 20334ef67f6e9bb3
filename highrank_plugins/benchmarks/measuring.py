"""Measure the time and peak memory of a step, in a process of its own; find the largest batch."""

from __future__ import annotations

import ctypes
import gc
import json
import platform
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from highrank_plugins.benchmarks.case import (
    Case,
    LossCase,
    changed,
)
from highrank_plugins.common.processes import python
from highrank_plugins.common.provenance import hardware

Step = Callable[[], None]
STEP = 64  # batches of a loss are multiples of this; finer differences are noise
MOST = 2**17


def use(device: str, threads: int) -> None:
    """Set the number of CPU threads, and the GPU of calls that name none, such as for memory."""
    import torch

    if threads:
        torch.set_num_threads(threads)
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


def measure(
    kind: str,
    case: Case,
    implementation: str,
    repeats: int,
    threads: int,
    *,
    baseline: str | None = None,
    baseline_case: Case | None = None,
) -> dict[str, Any]:
    """Return what `measured` finds in a new process; 0 `threads` leaves torch its choice.

    `baseline_case` is the baseline's, if it has another batch; its time is scaled to our tokens.
    """
    request = {
        "kind": kind, "case": asdict(case), "implementation": implementation, "baseline": baseline,
        "baseline_case": asdict(baseline_case or case), "repeats": repeats, "threads": threads,
    }  # fmt: skip
    child = subprocess.run(
        python("-m", "highrank_plugins.benchmarks.run"),
        input=json.dumps(request), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if child.returncode:
        last = child.stderr.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        last[0] = re.sub(r"^(\w+\.)+(?=\w+: )", "", last[0])  # the module of an exception's class
        killed = child.returncode == -signal.SIGKILL
        raise (OutOfMemory if killed or "memory" in last[0] else MeasurementFailed)(last[0])
    try:
        return json.loads(child.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise MeasurementFailed(f"expected a result in JSON, got {child.stdout[:80]!r}") from None


def largest_batch(
    kind: str,
    case: Case,
    implementation: str,
    limit: int,
    threads: int,
    say: Callable[[str], object] = lambda text: None,
) -> Any:
    """Return `case` with the largest batch that fits into `limit` bytes.

    A loss has a multiple of 64 tokens, a model any number of sentences or streams. `say` receives a
    line for each batch that is tried, since a large one takes minutes.
    """
    field, step = ("tokens", STEP) if isinstance(case, LossCase) else ("sentences", 1)
    most = MOST // (case.work() // getattr(case, field))

    def fits(steps: int) -> bool:
        try:
            sized = changed(case, {field: steps * step})
            memory = measure(kind, sized, implementation, 0, threads)["memory"]
            found = memory is not None and memory <= limit
        except OutOfMemory:
            found = False
        say(f"{implementation}: {steps * step:,} {field} {'fit' if found else 'do not fit'}")
        return found

    if not fits(1):
        smallest = "64 tokens" if field == "tokens" else "one sentence or stream"
        raise MeasurementFailed(
            f"--within: {limit // 2**20} MiB is too little for {smallest} of "
            f"{implementation}; raise the limit"
        )
    good, bad = 1, 2
    while bad * step <= most and fits(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most // step + 1)
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return changed(case, {field: good * step})


def machine(case: Case) -> str:
    """Return hardware and versions in one line."""
    import torch

    python = f"torch {torch.__version__}, Python {platform.python_version()}"
    if case.device != "cpu":
        return f"{torch.cuda.get_device_name(case.device)}, {case.dtype}, {python}"
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' * (count != 1)}"
    return f"{hardware()['processor']}, {threads}, {case.dtype}, {python}"
