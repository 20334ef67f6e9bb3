"""Run a benchmark from its options to its table."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from highrank_plugins.benchmarks.case import (
    BenchSettings,
    Case,
    CaseError,
    LossCase,
    ModelCase,
    case_from,
    changed,
    check_device,
    check_implementations,
    import_user_dir,
    named,
)
from highrank_plugins.benchmarks.measuring import (
    MeasurementFailed,
    Step,
    alternate,
    largest_batch,
    machine,
    measure,
    peak_memory,
    return_free_memory,
    use,
)
from highrank_plugins.benchmarks.rows import Row, check_csv, table, write_csv
from highrank_plugins.common.processes import keep_freed_memory
from highrank_plugins.common.provenance import revision, typed_command
from highrank_plugins.common.user_error import UserError

Echo = Callable[[str], None]
MIB = 2**20


@dataclass(frozen=True)
class Benchmark:
    """Measure implementations of cases, print each, and write them to a CSV file."""

    kind: str  # of `case.KINDS`
    settings: BenchSettings
    echo: Echo

    def run(self, subjects: Iterable[tuple[str, Case, list[str], str]]) -> tuple[list[Row], int]:
        """Print a table of cases with their implementations and baseline; count what failed."""
        rows: list[Row] = []
        failed = 0
        for name, case, implementations, baseline in subjects:
            own = None
            try:
                if isinstance(case, ModelCase):  # the floor has the batch of each loss
                    own = self._sized(name, case, baseline)
            except MeasurementFailed as error:
                failed += 1
                self.echo(f"{name}: {baseline} failed: {error}")
                continue
            for tried in implementations:
                try:
                    row = self._row((name, tried, baseline), case, own)
                except MeasurementFailed as error:
                    failed += 1
                    self.echo(f"{name}: {tried} failed: {error}")
                    continue
                rows.append(row)
                time = f"{row.milliseconds:,.1f} ms, {row.over_baseline:.2f} × {row.baseline}"
                self.echo(f"{row.case}: {row.implementation} {time}")
                if self.settings.csv is not None:  # at once: the next row may take an hour
                    write_csv(rows, self.settings.csv)
        if not rows:
            raise CaseError("nothing could be measured; see the reasons above")
        self.echo(f"\n{rows[0].machine}\n\n{table(rows)}")
        return rows, failed

    def _row(self, names: tuple[str, str, str], case: Case, baseline_case: Case | None) -> Row:
        name, implementation, baseline = names
        sized = self._sized(name, case, implementation)
        found = measure(
            self.kind, sized, implementation, self.settings.repeats, self.settings.threads,
            baseline=baseline, baseline_case=baseline_case,
        )  # fmt: skip
        made = {"revision": revision(), "command": typed_command()}
        return Row.of(names, sized.work(), found, **made)

    def _sized(self, name: str, case: Case, implementation: str) -> Case:
        if self.settings.within is None:
            return case
        limit = self.settings.within * MIB
        return largest_batch(
            self.kind, case, implementation, limit, self.settings.threads,
            lambda text: self.echo(f"{name}: {text}"),
        )  # fmt: skip


def run_losses(
    names: list[str],
    implementations: list[str],
    changes: dict[str, Any],
    grid: dict[str, list[int]],
    benchmark: Benchmark,
) -> int:
    """Measure every case with every implementation that can do it; return how many failed.

    `changes` replace values of the presets. `grid` has several values of some sizes; every
    combination is a case.
    """
    check_csv(benchmark.settings.csv)
    cases = loss_cases(names, implementations, changes, grid)
    from highrank_plugins.benchmarks.implementations import available

    def subjects() -> Iterable[tuple[str, Case, list[str], str]]:
        for name, case in cases.items():
            reasons = {each: available(each, case) for each in implementations}
            for each, reason in reasons.items():
                if reason is not None:
                    benchmark.echo(f"{name}: {each} skipped ({reason})")
            able = [each for each, reason in reasons.items() if reason is None]
            yield name, case, able, "gemm_floor"

    return benchmark.run(subjects())[1]


def run_models(
    names: list[str], models: list[str] | None, changes: dict[str, Any], benchmark: Benchmark
) -> int:
    """Measure training steps or beam search of each model; return how many failed."""
    check_csv(benchmark.settings.csv)
    if any(not model.strip() for model in models or ()):
        raise CaseError("--model: expected an arch, then its options after a space")
    cases = _cases(benchmark.kind, names, changes)
    _, failed = benchmark.run(
        (name, case, models or list(case.models), case.baseline)
        for name, case in cases.items()
        if isinstance(case, ModelCase)
    )
    return failed


def loss_cases(
    names: list[str],
    implementations: list[str],
    changes: dict[str, Any],
    grid: Mapping[str, list[int]],
) -> dict[str, LossCase]:
    """Return checked losses, one for every combination of sizes in a grid."""
    check_implementations(implementations)
    cases = _cases("loss", names, changes)
    result = {}
    for name, case in cases.items():
        for values in itertools.product(*grid.values()):
            sizes = dict(zip(grid, values, strict=True))
            words = "".join(f" {key}={value}" for key, value in sizes.items())
            result[f"{name}{words}"] = changed(case, sizes)
    return {name: case for name, case in result.items() if isinstance(case, LossCase)}


def _cases(kind: str, names: list[str], changes: dict[str, Any]) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name in names:
        cases |= {n: changed(case, changes) for n, case in named(kind, name).items()}
    check_device(changes["device"])  # last: torch takes seconds to load
    return cases


# -- in the process of a measurement --


def main() -> None:
    """Read a request from standard input, measure, and print the result."""
    try:
        result = measured(json.load(sys.stdin))
    except UserError as error:  # the parent shows the last line, which would begin with the class
        sys.exit(str(error))
    json.dump(result, sys.stdout)


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Return seconds of implementation and baseline (if any), and the former's peak in bytes."""
    import torch

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


def _step(kind: str, implementation: str, case: Case) -> Step:
    if isinstance(case, LossCase):
        from highrank_plugins.benchmarks.implementations import loss_step

        if case.user_dir is not None:
            import_user_dir(case.user_dir)
        return loss_step(implementation, case)
    from highrank_plugins.benchmarks.models import model_step

    return model_step(kind, implementation, case)


if __name__ == "__main__":
    main()
