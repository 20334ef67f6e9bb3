"""Measure in a separate process, and find the largest batch within a memory limit."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from highrank_plugins.benchmarks.case import Case, LossCase, changed
from highrank_plugins.benchmarks.rows import Row, row
from highrank_plugins.common.processes import python
from highrank_plugins.common.provenance import revision, typed_command

STEP = 64  # batches of a loss are multiples of this; finer differences are noise
MOST = 2**17


class MeasurementFailed(RuntimeError):
    """Report that the process of a measurement died; the message is its last line."""


class OutOfMemory(MeasurementFailed):
    """Report that the process ran out of memory: it raised an exception or was killed."""


def measure(
    kind: str, name: str, case: Case, implementation: str, baseline: str, repeats: int,
    threads: int, baseline_case: Case | None = None,
) -> Row:  # fmt: skip
    """Measure one implementation, in a new process.

    Args:
        threads: of torch; 0 leaves its choice.
        baseline_case: the baseline's, if it has another batch; its time is scaled to as many
            tokens.
    """
    result = _ask(kind, case, implementation, baseline, repeats, threads, baseline_case)
    return row(
        name, implementation, case.work(), baseline, result["seconds"], result["baseline_seconds"],
        result["memory"], result["threads"], result["machine"], revision(), typed_command(),
    )  # fmt: skip


def alone(
    kind: str, case: Case, implementation: str, repeats: int, threads: int
) -> tuple[float, int | None, str]:
    """Return median seconds without baseline, peak memory in bytes, and the machine."""
    result = _ask(kind, case, implementation, None, repeats, threads)
    return statistics.median(result["seconds"]), result["memory"], result["machine"]


def peak(kind: str, case: Case, implementation: str, threads: int) -> int | None:
    """Return only the peak memory, in bytes."""
    return _ask(kind, case, implementation, None, 0, threads)["memory"]


def _ask(
    kind: str, case: Case, implementation: str, baseline: str | None, repeats: int, threads: int,
    baseline_case: Case | None = None,
) -> dict[str, Any]:  # fmt: skip
    request = {
        "kind": kind, "case": asdict(case), "implementation": implementation, "baseline": baseline,
        "baseline_case": asdict(baseline_case or case), "repeats": repeats, "threads": threads,
    }  # fmt: skip
    child = subprocess.run(
        python("-m", f"{__package__}.child"),
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
    case: Case,
    implementation: str,
    limit: int,
    threads: int,
    kind: str = "loss",
    say: Callable[[str], object] = lambda text: None,
) -> Any:
    """Return `case` with the largest batch that fits into `limit` bytes.

    A loss has a multiple of 64 tokens, a model any number of sentences or streams.

    Args:
        say: receives a line for each batch that is tried; a large one takes minutes.
    """
    field, step = ("tokens", STEP) if isinstance(case, LossCase) else ("sentences", 1)
    most = MOST // (case.work() // getattr(case, field))

    def fits(steps: int) -> bool:
        try:
            memory = peak(kind, changed(case, {field: steps * step}), implementation, threads)
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
