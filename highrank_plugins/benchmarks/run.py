"""A benchmark from its options to its table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .case import Case, CaseError, LossCase, ModelCase, changed, named
from .contenders import available, check_contenders
from .fit import largest_batch
from .process import ContenderFailed, measure
from .report import check_outputs, table
from .report import plot as write_plot
from .rows import Row, write_csv

Echo = Callable[[str], None]


def run_losses(
    names: list[str],
    contenders: list[str],
    changes: dict[str, Any],
    grid: dict[str, list[int]],
    within: int | None,
    repeats: int,
    threads: int,
    csv: Path | None,
    plot: Path | None,
    *,
    echo: Echo,
) -> None:
    """Measure every case with every contender that can do it; print a table.

    Args:
        changes: values that replace those of the presets.
        grid: several values of some sizes; every combination is a case.
        within: MiB; each contender gets the largest batch that stays below.
    Raises:
        CaseError: a preset, contender or size that does not exist; nothing could be measured.
    """
    check_device(changes["device"])
    check_outputs(csv, plot)
    check_contenders(contenders)
    cases = _grid_cases(_cases("loss", names, changes), grid)
    rows: list[Row] = []
    for name, case in cases.items():
        assert isinstance(case, LossCase)
        for contender in contenders:
            reason = available(contender, case)
            if reason is not None:
                echo(f"{name}: {contender} left out ({reason})")
                continue
            sized = case
            if within is not None:
                sized = largest_batch(case, contender, within * 2**20, threads)
            _add(rows, "loss", name, sized, contender, "floor", repeats, threads, echo)
    _show(rows, echo)
    if csv is not None:
        write_csv(rows, csv)
    if plot is not None:
        label = next(iter(grid), "tokens")
        sizes = {name: getattr(case, label) for name, case in cases.items()}
        write_plot(rows, sizes, label, plot)


def run_models(
    kind: str,
    names: list[str],
    contenders: list[str] | None,
    changes: dict[str, Any],
    repeats: int,
    threads: int,
    csv: Path | None,
    *,
    echo: Echo,
) -> None:
    """Measure training steps or beam search of each contender; print a table.

    Raises:
        CaseError: a preset that does not exist.
    """
    check_device(changes["device"])
    check_outputs(csv, None)
    rows: list[Row] = []
    for name, case in _cases(kind, names, changes).items():
        assert isinstance(case, ModelCase)
        for contender in contenders or case.contenders:
            _add(rows, kind, name, case, contender, case.baseline, repeats, threads, echo)
    _show(rows, echo)
    if csv is not None:
        write_csv(rows, csv)


def check_device(device: str) -> None:
    """Refuse a GPU that is not there.

    Raises:
        CaseError: names the option.
    """
    if device != "cpu" and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise CaseError(f"--device {device}: torch sees no such device here; try --device cpu")


def _show(rows: list[Row], echo: Echo) -> None:
    if not rows:
        raise CaseError("nothing could be measured; the reasons stand above")
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


def _add(
    rows: list[Row],
    kind: str,
    name: str,
    case: Case,
    contender: str,
    baseline: str,
    repeats: int,
    threads: int,
    echo: Echo,
) -> None:
    try:
        found = measure(kind, name, case, contender, baseline, repeats, threads)
    except ContenderFailed as error:
        echo(f"{name}: {contender} failed: {error}")
        return
    echo(
        f"{name}: {contender} {found.milliseconds:,.1f} ms, {found.over_baseline:.2f} × {baseline}"
    )
    rows.append(found)
