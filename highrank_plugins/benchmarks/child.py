"""Measure in a separate process: read a JSON request from standard input, print the result.

`operations` shows in which of torch's operations a loss spends time.
"""

from __future__ import annotations

import json
import platform
import sys
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from highrank_plugins.benchmarks.case import Case, LossCase, case_from, import_user_dir
from highrank_plugins.benchmarks.implementations import loss_step
from highrank_plugins.benchmarks.measuring import (
    Step,
    alternate,
    peak_memory,
    return_free_memory,
    use,
)
from highrank_plugins.common import formatting
from highrank_plugins.common.processes import keep_freed_memory
from highrank_plugins.common.provenance import hardware
from highrank_plugins.common.user_error import UserError

PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm_"}


def main() -> None:
    """Read a request, measure, and write the result."""
    try:
        result = measured(json.load(sys.stdin))
    except UserError as error:  # the parent shows the last line, which would begin with the class
        sys.exit(str(error))
    json.dump(result, sys.stdout)


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of implementation and baseline (if any), and the former's peak in bytes."""
    kind, case = request["kind"], case_from(request["kind"], request["case"])
    use(case.device, request["threads"])
    # exclude what libraries allocate in a first step (7 to 20 MiB for products alone)
    _step(kind, request["implementation"], case)()
    return_free_memory()
    subject = _step(kind, request["implementation"], case)
    memory = peak_memory(subject, case.device)
    result: dict[str, Any] = {
        "memory": memory,
        "threads": torch.get_num_threads(),
        "machine": machine(case),
    }
    keep_freed_memory()  # as training does; holes would count as memory of the step
    if request["repeats"]:
        steps = [subject]
        if request["baseline"] is not None:
            own = case_from(kind, request["baseline_case"])
            steps.append(_step(kind, request["baseline"], own))
        timings, *others = alternate(steps, case.device, request["repeats"])
        result["seconds"], result["processor_seconds"] = zip(*timings, strict=True)
        if others:  # scale the baseline to the work of the subject
            scale = case.work() / own.work()
            result["baseline_seconds"] = [scale * timing.seconds for timing in others[0]]
    return result


def machine(case: Case) -> str:
    """Return hardware and versions in one line."""
    python = f"torch {torch.__version__}, Python {platform.python_version()}"
    if case.device != "cpu":
        return f"{torch.cuda.get_device_name(case.device)}, {case.dtype}, {python}"
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' * (count != 1)}"
    return f"{hardware()['processor']}, {threads}, {case.dtype}, {python}"


def _step(kind: str, implementation: str, case: Case) -> Step:
    if isinstance(case, LossCase):
        if case.user_dir is not None:
            import_user_dir(case.user_dir)
        return loss_step(implementation, case)
    from highrank_plugins.benchmarks.models import model_step

    return model_step(kind, implementation, case)


class Operation(NamedTuple):
    """Hold self time in ms and calls per step. All matrix products are one operation."""

    name: str
    milliseconds: float
    calls: float


def operations(case: LossCase, implementation: str, repeats: int, threads: int) -> list[Operation]:
    """Return operations of a step (forward and backward) after a warm-up, the longest first."""
    use(case.device, threads)
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


if __name__ == "__main__":
    main()
