"""Compare systems by the records of their runs, or by numbers: `highrank compare`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from highrank_plugins.cli.options import TestKind, names, numbers, print_tables
from highrank_plugins.training.blocks import option

if TYPE_CHECKING:
    from highrank_plugins.results.comparison import Compared

Format = Literal["terminal", "markdown", "latex", "csv"]


def compare(
    records: Annotated[
        list[Path],
        typer.Argument(
            help="SYSTEM-SEED.json, SYSTEM-SEED/results.json or SYSTEM/results.json; or numbers, "
            "the baseline first: SYSTEM=57.1,57.2 or SYSTEM=MEAN:SD:RUNS."
        ),
    ],
    metric: str | None = option(
        None, "Metric to test (default: sacrebleu, or else test_perplexity)."
    ),
    baseline: str | None = option(None, "System to test against (default: softmax)."),
    test: TestKind = "student",
    alpha: float = option(
        0.05, "Significance level of bold numbers, after Holm's adjustment.", ge=0, le=1
    ),
    columns: str | None = option(
        None, "Further metrics to show, separated by commas (default: all known)."
    ),
    paper: str | None = option(None, "Paper to test our scores against, e.g. yang2019."),
    task: str | None = option(None, "Recipe whose published scores these are, e.g. ptb."),
    runs: bool = option(False, "Print a row for each record, and test nothing."),
    format: Format | None = option(
        None, "Format of the table (default: terminal on a terminal, else markdown)."
    ),
    plot: Path | None = option(None, "Also draw the metric over --x (.png, .svg, .pdf)."),
    x: str | None = option(
        None,
        "Horizontal axis of --plot: parameters (default), words_per_second (default for records "
        "without parameters), a metric, or an option of train. With --y, the first metric of "
        "the correlation (default: test_rank).",
    ),
    y: str | None = option(None, "Correlate this metric with --x over models, and test nothing."),
    within: str | None = option(
        None, "Use only the models whose --y lies in LOW,HIGH, e.g. 56.6,57.6."
    ),
    output: Path | None = option(None, "File for the table (default, and -: print it)."),
) -> None:
    """Compare systems over seeds: means, tests, effects, costs.

    Example: highrank compare exp/ptb/*/results.json --baseline softmax

    Notes below the table name what else differs between the runs: training length, batches,
    scoring, text, code, machine. With --runs two records of one configuration and seed need
    different revisions of the code. With --y the seeds of a configuration are one point, since they
    are not independent of each other.
    """
    from highrank_plugins.reports.comparisons import (
        comparison_tables,
        correlation_figure,
        correlation_table,
        runs_table,
        study_figures,
    )
    from highrank_plugins.reports.plots import check_plot, draw
    from highrank_plugins.results.comparison import compare_values

    check_plot(plot)
    given = [str(path) for path in records if "=" in str(path) and not path.exists()]
    options = {
        "--metric": metric, "--baseline": baseline, "--columns": columns, "--paper": paper,
        "--plot": plot, "--x": x, "--y": y, "--within": within, "--task": task,
    }  # fmt: skip
    kind = "--runs" if runs else "--y" if y is not None else "numbers" if given else ""
    _refuse_idle(kind, {name: value for name, value in options.items() if value is not None})
    if given and len(given) < len(records):
        raise ValueError(f"{given[0]}: give records or numbers, not both")
    if runs:
        tables = [runs_table(records)]
    elif y is not None:
        x = x or "test_rank"
        tables = [correlation_table(records, x, y, None if within is None else _range(within))]
        if plot is not None:
            draw(plot, correlation_figure(records, x, y))
    elif given:
        tables = comparison_tables(compare_values(given, metric, test, alpha))
    else:
        shown = names("--columns", columns) if columns else None if columns is None else []
        compared = _compared(records, metric, baseline, test, alpha, shown)
        if plot is not None:
            draw(plot, *study_figures(compared, x))
        tables = comparison_tables(compared, paper=None if paper is None else (paper, task))
    print_tables(tables, output, format)


def _refuse_idle(kind: str, given: Mapping[str, object]) -> None:
    """Refuse options that would change nothing in this kind of comparison."""
    used = {"--runs": (), "--y": ("--plot", "--x", "--y", "--within"), "numbers": ("--metric",)}
    for name in given if kind else ():
        if name not in used[kind]:
            raise ValueError(f"{name} {given[name]}: changes nothing with {kind}; leave it out")
    needs = {"--task": "--paper", "--within": "--y", "--x": "--plot"}
    for name, needed in needs.items():
        if name in given and not {needed, "--y"} & given.keys():
            raise ValueError(
                f"{name} {given[name]}: changes nothing without {needed}; add {needed}"
            )


def _compared(
    records: list[Path],
    metric: str | None,
    baseline: str | None,
    test: str,
    alpha: float,
    columns: list[str] | None,
) -> "Compared":
    """Compare records, and name the other runs of their studies that have none."""
    from highrank_plugins.results.comparison import compare_records
    from highrank_plugins.results.record import DIVERGED, UNFAIR
    from highrank_plugins.results.results_table import study_problems

    problems = study_problems(records)
    diverged = [run.rpartition("-")[0] for run, why in problems.items() if why == DIVERGED]
    untested = dict.fromkeys(diverged, UNFAIR)
    compared = compare_records(records, metric, baseline, test, alpha, columns, untested)
    missing = [f"{run} has no record: {why}." for run, why in problems.items()]
    return replace(compared, notes=[*compared.notes, *missing])


def _range(text: str) -> tuple[float, float]:
    found = numbers("--within", text, float)
    if len(found) != 2 or not found[0] < found[1]:
        raise ValueError(f"--within {text}: expected LOW,HIGH with LOW below HIGH")
    return found[0], found[1]
