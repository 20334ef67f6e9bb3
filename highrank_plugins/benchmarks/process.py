"""A measurement in a process of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from .case import Case


class ContenderFailed(RuntimeError):
    """The process of a measurement died; the message is its last line."""


@dataclass(frozen=True)
class Measurement:
    """What one contender took for one case."""

    case: str
    contender: str
    seconds: tuple[float, ...]
    baseline_seconds: tuple[float, ...]
    memory: int | None
    threads: int

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median

    @property
    def over_baseline(self) -> float:
        """Median time over the baseline's, both measured in turns in the same process."""
        return self.median / statistics.median(self.baseline_seconds)


def measure(
    kind: str, name: str, case: Case, contender: str, baseline: str, repeats: int, threads: int
) -> Measurement:
    """One contender, in a new process.

    Args:
        threads: of torch; 0 leaves its choice.
    Raises:
        ContenderFailed: no memory, say.
    """
    result = _ask(kind, case, contender, baseline, repeats, threads)
    return Measurement(
        name, contender, tuple(result["seconds"]), tuple(result["baseline_seconds"]),
        result["memory"], result["threads"],
    )  # fmt: skip


def peak(kind: str, case: Case, contender: str, threads: int) -> int | None:
    """Peak memory alone, in bytes.

    Raises:
        ContenderFailed: no memory, say.
    """
    return _ask(kind, case, contender, contender, 0, threads)["memory"]


def _ask(
    kind: str, case: Case, contender: str, baseline: str, repeats: int, threads: int
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
        raise ContenderFailed(last[0])
    return json.loads(child.stdout.splitlines()[-1])
