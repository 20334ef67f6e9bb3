"""Compare systems by the records of their runs: `highrank compare`."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from highrank_plugins.cli.options import TestKind, names
from highrank_plugins.cli.printing import is_printed, print_or_write

Format = Literal["terminal", "markdown", "latex", "csv"]


def compare(
    records: Annotated[
        list[Path], "SYSTEM-SEED.json, SYSTEM-SEED/results.json or SYSTEM/results.json."
    ],
    metric: Annotated[
        str | None, "Metric to test (default: sacrebleu, or else test_perplexity)."
    ] = None,
    baseline: Annotated[str | None, "System to test against (default: softmax)."] = None,
    test: TestKind = "student",
    alpha: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Significance level of bold numbers, after Holm's adjustment."
        ),
    ] = 0.05,
    columns: Annotated[
        str | None, "Further metrics to show, separated by commas (default: all known)."
    ] = None,
    paper: Annotated[str | None, "Paper to test our scores against, e.g. yang2019."] = None,
    task: Annotated[str | None, "Recipe whose published scores these are, e.g. ptb."] = None,
    format: Annotated[
        Format | None, "Format of the table (default: terminal on a terminal, else markdown)."
    ] = None,
    plot: Annotated[Path | None, "Also draw the metric over --x (.png, .svg, .pdf)."] = None,
    x: Annotated[
        str | None,
        "Horizontal axis of --plot: words_per_second (default), parameters, a metric, or an option "
        "of train.",
    ] = None,
    output: Annotated[Path | None, "File for the table (default, and -: print it)."] = None,
) -> None:
    """Compare systems over seeds: means, tests, effects, costs.

    Example: highrank compare exp/ptb/*/results.json --baseline softmax

    Notes say where lengths of training, batches, scoring, texts, code or machines differ.
    """
    from highrank_plugins.reports.comparison_tables import comparison_tables
    from highrank_plugins.reports.plots import check_plot, draw
    from highrank_plugins.reports.study_plots import study_figures
    from highrank_plugins.reports.tables import FORMATS
    from highrank_plugins.results.comparison import compare_records
    from highrank_plugins.results.record import DIVERGED, UNFAIR, study_problems

    check_plot(plot)
    for name, given, other in (("--x", x, plot), ("--task", task, paper)):
        if given is not None and other is None:
            needed = "--plot" if name == "--x" else "--paper"
            raise ValueError(f"{name} {given}: changes nothing without {needed}; add {needed}")
    shown = [] if columns == "" else columns and names("--columns", columns)
    problems = study_problems(records)
    diverged = [run.rpartition("-")[0] for run, why in problems.items() if why == DIVERGED]
    untested = dict.fromkeys(diverged, UNFAIR)
    compared = compare_records(records, metric, baseline, test, alpha, shown, untested)
    missing = [f"{run} has no record: {why}." for run, why in problems.items()]
    compared = replace(compared, notes=[*compared.notes, *missing])
    on_terminal = is_printed(output) and sys.stdout.isatty()
    if plot is not None:
        draw(plot, *study_figures(compared, x or "words_per_second"))
    tables = comparison_tables(compared, paper=None if paper is None else (paper, task))
    text = FORMATS[format or ("terminal" if on_terminal else "markdown")](tables)
    print_or_write(text, output)
