"""A measurement in a process of its own."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
from dataclasses import asdict
from typing import Any

from highrank_plugins.benchmarks.case import Case
from highrank_plugins.benchmarks.rows import Row, row
from highrank_plugins.common.provenance import revision, typed_command


class ContenderFailed(RuntimeError):
    """The process of a measurement died; the message is its last line."""


class OutOfMemory(ContenderFailed):
    """It died of that, by an exception or by the system's hand."""


def measure(
    kind: str, name: str, case: Case, contender: str, baseline: str, repeats: int, threads: int
) -> Row:
    """One contender, in a new process.

    Args:
        threads: of torch; 0 leaves its choice.
    Raises:
        ContenderFailed: no memory, say.
    """
    result = _ask(kind, case, contender, baseline, repeats, threads)
    return row(
        name, contender, case.work(), baseline, result["seconds"], result["baseline_seconds"],
        result["memory"], result["threads"], result["machine"], revision(), typed_command(),
    )  # fmt: skip


def alone(
    kind: str, case: Case, contender: str, repeats: int, threads: int
) -> tuple[float, int | None, str]:
    """Median seconds of a contender without baseline, its peak memory in bytes, and the machine.

    Raises:
        ContenderFailed: no memory, say.
    """
    result = _ask(kind, case, contender, None, repeats, threads)
    return statistics.median(result["seconds"]), result["memory"], result["machine"]


def peak(kind: str, case: Case, contender: str, threads: int) -> int | None:
    """Peak memory alone, in bytes.

    Raises:
        ContenderFailed: no memory, say.
    """
    return _ask(kind, case, contender, None, 0, threads)["memory"]


def _ask(
    kind: str, case: Case, contender: str, baseline: str | None, repeats: int, threads: int
) -> dict[str, Any]:
    request = {
        "kind": kind, "case": asdict(case), "contender": contender, "baseline": baseline,
        "repeats": repeats, "threads": threads,
    }  # fmt: skip
    child = subprocess.run(
        [sys.executable, "-m", f"{__package__}.child"],
        input=json.dumps(request), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if child.returncode:
        last = child.stderr.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        killed = child.returncode == -signal.SIGKILL
        raise (OutOfMemory if killed or "memory" in last[0] else ContenderFailed)(last[0])
    try:
        return json.loads(child.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise ContenderFailed(f"it printed no result but {child.stdout[:80]!r}") from None
