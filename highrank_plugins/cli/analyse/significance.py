"""Provide `highrank analyse ttest`, `correlation` and `bleu`: tests of differences."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from highrank_plugins.cli.analyse.running import Output, Plot, measuring, report
from highrank_plugins.cli.options import TestKind, numbers
from highrank_plugins.common.scored_text import Tokens


def ttest(
    systems: Annotated[
        list[str],
        typer.Argument(
            help="NAME=57.1,57.2,… or NAME=MEAN:SD:RUNS or NAME=RECORD.json,…; baseline first.",
            metavar="SYSTEM",
        ),
    ],
    metric: Annotated[str | None, "Metric to read from each record, e.g. test_perplexity."] = None,
    test: TestKind = "student",
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Test systems against the first one by t-tests.

    Example: highrank analyse ttest softmax=57.1,57.3 mos=55.9,56.2

    The tests are two-sided; p-values of several systems are adjusted by Holm's method.
    """
    with measuring(plot):
        from highrank_plugins.analysis.statistics import summarise
        from highrank_plugins.reports import plots
        from highrank_plugins.results.systems import compare, read_systems

        read = read_systems(systems, metric)
        found = compare(read, test)
        baseline = {"name": read[0].name} | summarise(read[0].runs)._asdict()
        report({"test": test, "baseline": baseline, "systems": found}, output)
        if plot is not None:
            runs = {system.name: summarise(system.runs)[:2] for system in read}
            plots.means(plot, runs, "mean ± deviation of the runs", ("system", metric or "mean"))


def correlation(
    records: Annotated[
        list[Path], "Records of runs. Seeds of one configuration count as one model."
    ],
    x: Annotated[str, "First metric to read from the records."] = "test_rank",
    y: Annotated[str, "Second metric to read from the records."] = "test_perplexity",
    within: Annotated[
        str | None, "Use only the models whose second metric lies in LOW,HIGH, e.g. 56.6,57.6."
    ] = None,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Compute Pearson's correlation of two metrics over models.

    Example: highrank analyse correlation exp/ptb/*/results.json

    Prints the p-value, too. A model trained with several seeds is a single point with their means,
    since its seeds are not independent of each other.
    """
    with measuring(plot):
        from math import inf
        from statistics import mean

        from highrank_plugins.analysis.statistics import pearson
        from highrank_plugins.common.figures import Scatter
        from highrank_plugins.common.names import distinct_names
        from highrank_plugins.reports import plots
        from highrank_plugins.reports.study_plots import axis, scale_of
        from highrank_plugins.results.record import configuration_of, load_record
        from highrank_plugins.results.systems import numbers_of

        names = distinct_names(records)
        pairs = zip(records, numbers_of(records, x, y), strict=True)
        found = {str(path): (a, b) for path, (a, b) in pairs}
        models: dict[str, list[tuple[float, float]]] = {}
        for path, at in zip(records, found.values(), strict=True):
            models.setdefault(configuration_of(load_record(path)) or str(path), []).append(at)
        low, high = (-inf, inf) if within is None else _range(within)
        means = [[mean(at[n] for at in seeds) for n in (0, 1)] for seeds in models.values()]
        used = [at for at in means if low <= at[1] <= high]
        if len(used) < 3:
            where = "" if within is None else f" have {y} within {within}"
            raise ValueError(
                f"{len(used)} models with their own configuration{where}: a correlation needs three"
            )
        xs, ys = zip(*used, strict=True)
        report(pearson(xs, ys), output, x=x, y=y, points=found)
        if plot is not None:
            runs: dict[str, list[tuple[float, float]]] = {}
            for name, at in zip(names, found.values(), strict=True):
                runs.setdefault(re.sub(r"-\d+$", "", name), []).append(at)
            names_of_axes = (axis(x), axis(y))
            title = f"{names_of_axes[1]} over {names_of_axes[0]}"
            figure = Scatter(runs, title, names_of_axes, scale_of(x, y), labelled=list(runs))
            plots.draw(plot, figure)


def _range(text: str) -> tuple[float, float]:
    found = numbers("--within", text, float)
    if len(found) != 2 or not found[0] < found[1]:
        raise ValueError(f"--within {text}: expected LOW,HIGH with LOW below HIGH")
    return found[0], found[1]


def bleu(
    systems: Annotated[
        list[Path], "Files of translations, one per line; the first is the baseline."
    ],
    reference: Annotated[
        list[Path], typer.Option(help="File of references, one per line; may be repeated.")
    ],
    test: Annotated[
        Literal["bootstrap", "randomisation"],
        "Test: paired bootstrap or approximate randomisation.",
    ] = "bootstrap",
    samples: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of resamplings; 0: sacreBLEU's default, 1,000 for bootstrap and 10,000 "
            "for randomisation.",
        ),
    ] = 0,
    bleu_tokens: Annotated[
        Tokens | None, "Tokens of sacreBLEU. [default: by the script of the references]"
    ] = None,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Score systems by BLEU, and test them against the first.

    Example: highrank analyse bleu softmax.de mos.de --reference test.de

    The tests are sacreBLEU's paired tests.
    """
    with measuring(plot):
        from sacrebleu.metrics import BLEU

        from highrank_plugins.analysis.statistics import paired_bleu
        from highrank_plugins.common.names import distinct_names
        from highrank_plugins.common.scored_text import bleu_tokens as choose_tokens
        from highrank_plugins.results.scoring import read_lines

        names = distinct_names(systems)
        texts = {str(path): read_lines(path) for path in systems}
        references = [read_lines(path) for path in reference]
        bleu = BLEU(tokenize=choose_tokens(references[0], bleu_tokens))
        found = paired_bleu(texts, references, test, samples, bleu)
        report(found, output, test=test)
        if plot is not None:
            from highrank_plugins.common.figures import Bars
            from highrank_plugins.reports.plots import draw

            values = (score.score for score in found.scores)
            scores = dict(zip(names, values, strict=True))
            draw(plot, Bars.of(scores, "sacreBLEU", ("system", "BLEU")))
