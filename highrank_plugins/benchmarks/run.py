"""Run a benchmark from its options to its table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from highrank_plugins.benchmarks.case import Case, CaseError, LossCase, ModelCase, changed, named
from highrank_plugins.benchmarks.implementations import available, check_implementations
from highrank_plugins.benchmarks.operations import operations, operations_table
from highrank_plugins.benchmarks.process import MeasurementFailed, largest_batch, measure
from highrank_plugins.benchmarks.report import check_outputs, table
from highrank_plugins.benchmarks.report import plot as write_plot
from highrank_plugins.benchmarks.rows import Row, write_csv

Echo = Callable[[str], None]
MIB = 2**20


def run_losses(
    names: list[str],
    implementations: list[str],
    changes: dict[str, Any],
    grid: dict[str, list[int]],
    within: int | None,
    repeats: int,
    threads: int,
    csv: Path | None,
    plot: Path | None,
    *,
    echo: Echo,
) -> int:
    """Measure every case with every implementation that can do it; print a table.

    Returns how many implementations failed.

    Args:
        changes: values that replace those of the presets.
        grid: several values of some sizes; every combination is a case.
        within: MiB; each implementation gets the largest batch that stays below.
    """
    check_device(changes["device"])
    check_outputs(csv, plot)
    check_implementations(implementations)
    if plot is not None and sum(len(values) > 1 for values in grid.values()) > 1:
        raise CaseError("--plot: only one size may have several values, since it is the x axis")
    cases = _grid_cases(_cases("loss", names, changes), grid)
    rows: list[Row] = []
    failed = 0
    for name, case in cases.items():
        assert isinstance(case, LossCase)
        for implementation in implementations:
            reason = available(implementation, case)
            if reason is not None:
                echo(f"{name}: {implementation} skipped ({reason})")
                continue
            try:
                sized = case
                if within is not None:
                    sized = largest_batch(
                        case, implementation, within * MIB, threads, say=_named(name, echo)
                    )
                rows.append(
                    measure("loss", name, sized, implementation, "gemm_floor", repeats, threads)
                )
            except MeasurementFailed as error:
                failed += _say_failed(name, implementation, error, echo)
                continue
            _keep(rows, csv, echo)
    _show(rows, echo)
    if plot is not None:
        write_plot(rows, *_axis(grid, cases), plot)
    return failed


def run_models(
    kind: str,
    names: list[str],
    models: list[str] | None,
    changes: dict[str, Any],
    within: int | None,
    repeats: int,
    threads: int,
    csv: Path | None,
    *,
    echo: Echo,
) -> int:
    """Measure training steps or beam search of each model; print a table.

    Returns how many models failed.

    Args:
        within: MiB; each model, the baseline too, gets the largest batch that stays below, and
            times are compared by token.
    """
    check_device(changes["device"])
    check_outputs(csv, None)
    if any(not model.strip() for model in models or ()):
        raise CaseError("--model: expected an arch, then its options after a space")
    rows: list[Row] = []
    failed = 0
    for name, case in _cases(kind, names, changes).items():
        assert isinstance(case, ModelCase)
        baseline_case = case
        if within is not None:
            try:
                baseline_case = largest_batch(
                    case, case.baseline, within * MIB, threads, kind, _named(name, echo)
                )
            except MeasurementFailed as error:
                failed += _say_failed(name, case.baseline, error, echo)
                continue
        for model in models or case.models:
            try:
                sized = case
                if within is not None:
                    sized = largest_batch(
                        case, model, within * MIB, threads, kind, _named(name, echo)
                    )
                rows.append(
                    measure(
                        kind, name, sized, model, case.baseline, repeats, threads, baseline_case
                    )
                )
            except MeasurementFailed as error:
                failed += _say_failed(name, model, error, echo)
                continue
            _keep(rows, csv, echo)
    _show(rows, echo)
    return failed


def profile_losses(
    names: list[str],
    implementation: str,
    changes: dict[str, Any],
    repeats: int,
    threads: int,
    *,
    echo: Echo,
) -> None:
    """Print which operations each case spends its time in, in this process."""
    check_device(changes["device"])
    check_implementations([implementation])
    for name, case in _cases("loss", names, changes).items():
        assert isinstance(case, LossCase)
        reason = available(implementation, case)
        if reason is not None:
            raise CaseError(f"{name}: --impl {implementation}: {reason}")
        found = operations(case, implementation, repeats, threads)
        echo(operations_table(f"{name} {implementation} {case.reduction}", found))


def check_device(device: str) -> None:
    """Refuse a missing GPU."""
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise CaseError(f"--device {device}: torch sees no such device here; try --device cpu")


def _show(rows: list[Row], echo: Echo) -> None:
    if not rows:
        raise CaseError("nothing could be measured; see the reasons above")
    echo(f"\n{rows[0].machine}\n\n{table(rows)}")


def _cases(kind: str, names: list[str], changes: dict[str, Any]) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for name in names:
        cases |= {n: changed(case, changes) for n, case in named(kind, name).items()}
    return cases


def _grid_cases(cases: dict[str, Case], grid: dict[str, list[int]]) -> dict[str, Case]:
    if not grid:
        return cases
    result = {}
    for name, case in cases.items():
        for values in itertools.product(*grid.values()):
            sizes = dict(zip(grid, values, strict=True))
            words = " ".join(f"{key}={value}" for key, value in sizes.items())
            result[f"{name} {words}"] = changed(case, sizes)
    return result


def _axis(grid: dict[str, list[int]], cases: dict[str, Case]) -> tuple[Callable[[Row], int], str]:
    """Return the x axis of a plot: the size that varies, or the number of tokens."""
    label = next((name for name, values in grid.items() if len(values) > 1), "tokens")
    if label == "tokens":
        return lambda row: row.tokens, label
    return lambda row: int(getattr(cases[row.case], label)), label


def _keep(rows: list[Row], csv: Path | None, echo: Echo) -> None:
    """Print the last row, and write the file at once: the next row may take an hour."""
    last = rows[-1]
    time = f"{last.milliseconds:,.1f} ms, {last.over_baseline:.2f} × {last.baseline}"
    echo(f"{last.case}: {last.implementation} {time}")
    if csv is not None:
        write_csv(rows, csv)


def _named(case: str, echo: Echo) -> Echo:
    return lambda text: echo(f"{case}: {text}")


def _say_failed(name: str, implementation: str, error: MeasurementFailed, echo: Echo) -> int:
    echo(f"{name}: {implementation} failed: {error}")
    return 1
