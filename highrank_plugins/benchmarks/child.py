"""Measure in a separate process: read a JSON request from standard input, print the result."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import torch

from highrank_plugins.benchmarks.case import Case, LossCase, case_from, import_user_dir
from highrank_plugins.benchmarks.implementations import loss_step
from highrank_plugins.benchmarks.measure import (
    Step,
    alternate,
    peak_memory,
    return_free_memory,
    use,
)
from highrank_plugins.common.provenance import hardware
from highrank_plugins.common.user_error import UserError


def main() -> None:
    """Read a request, measure, and write the result."""
    request = json.load(sys.stdin)
    if request["threads"]:
        torch.set_num_threads(request["threads"])
    try:
        result = measured(request)
    except UserError as error:  # the parent shows the last line, which would begin with the class
        sys.exit(str(error))
    json.dump(result, sys.stdout)


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of implementation and baseline (if any), and the former's peak in bytes."""
    case = case_from(request["kind"], request["case"])
    use(case.device)
    # exclude what libraries allocate in a first step (7 to 20 MiB for products alone)
    _step(request["kind"], request["implementation"], case)()
    return_free_memory()
    subject = _step(request["kind"], request["implementation"], case)
    memory = peak_memory(subject, case.device)
    result: dict[str, Any] = {
        "memory": memory,
        "threads": torch.get_num_threads(),
        "machine": machine(case),
    }
    if request["repeats"]:
        steps = [subject]
        if request["baseline"] is not None:
            own = case_from(request["kind"], request["baseline_case"])
            steps.append(_step(request["kind"], request["baseline"], own))
        result["seconds"], *others = alternate(steps, case.device, request["repeats"])
        if others:  # scale the baseline to the work of the subject
            scale = case.work() / own.work()
            (result["baseline_seconds"],) = [[scale * s for s in seconds] for seconds in others]
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


if __name__ == "__main__":
    main()
