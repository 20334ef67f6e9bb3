"""Show where the time of a loss goes: torch's operations, the longest first."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.benchmarks.implementations import loss_step
from highrank_plugins.benchmarks.measure import use
from highrank_plugins.common import formatting

PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm_"}


class Operation(NamedTuple):
    """Hold self time in ms and calls per step. All matrix products are one operation."""

    name: str
    milliseconds: float
    calls: float


def operations(case: LossCase, implementation: str, repeats: int, threads: int) -> list[Operation]:
    """Return operations of a step (forward and backward), after a warm-up step.

    Args:
        threads: of torch; 0: its own choice.
    """
    if threads:
        torch.set_num_threads(threads)
    use(case.device)
    step = loss_step(implementation, case)
    step()
    activity = ProfilerActivity.CUDA if case.device != "cpu" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        for _ in range(repeats):
            step()
    times: dict[str, list[float]] = {}
    for event in profiled.key_averages():
        name = "matrix products" if event.key in PRODUCTS else event.key.removeprefix("aten::")
        spent = event.self_cpu_time_total if case.device == "cpu" else event.self_device_time_total
        total = times.setdefault(name, [0.0, 0.0])
        total[0] += spent / 1000 / repeats
        total[1] += event.count / repeats
    found = [Operation(name, *total) for name, total in times.items()]
    return sorted(found, key=lambda operation: -operation.milliseconds)


def operations_table(case: str, found: list[Operation], least: float = 0.005) -> str:
    """Return Markdown; operations below a share of `least` are summed up."""
    total = sum(operation.milliseconds for operation in found)
    large = [o for o in found if o.milliseconds >= least * total]
    small = [o for o in found if o.milliseconds < least * total]
    rest = sum(o.milliseconds for o in small)
    rows = [*large, Operation("others", rest, sum(o.calls for o in small))]
    return formatting.table(
        [case, "ms", "share", "calls"],
        [
            [o.name, f"{o.milliseconds:,.1f}", f"{o.milliseconds / total:.1%}", f"{o.calls:,.0f}"]
            for o in rows
        ],
    )
