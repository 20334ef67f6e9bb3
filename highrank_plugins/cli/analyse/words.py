"""`highrank analyse word-similarity`, `unargmaxable`, `saturation`: the vocabulary matrix alone."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highrank_plugins.cli.analyse.options import Checkpoint, Data, Output, Plot
from highrank_plugins.cli.analyse.running import measuring, report

if TYPE_CHECKING:
    from highrank_plugins.analysis import Similarity


def word_similarity(
    checkpoint: Checkpoint,
    data: Data,
    pairs: Annotated[
        list[Path], typer.Option(help="Benchmark: two words and a number a line. Repeatable.")
    ],
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Spearman's correlation of the cosines of word vectors with people's scores."""
    with measuring(plot):
        from highrank_plugins.collect.words import load_vocabulary, similarities
        from highrank_plugins.experiments import plots
        from highrank_plugins.experiments.distinct_names import distinct_names

        vocabulary = load_vocabulary(checkpoint, data)
        found = similarities(vocabulary, pairs)
        for name, some in found.items():
            if some.spearman is None:
                _say_why(name, some, vocabulary.dictionary)
        report({"benchmarks": found}, output)
        if plot is not None:
            names = distinct_names([Path(name) for name in found])
            named = zip(names, found.values(), strict=True)
            known = {name: s.spearman for name, s in named if s.spearman is not None}
            plots.bars(plot, known, "word similarity", ("benchmark", "Spearman's ρ"))


def _say_why(name: str, found: "Similarity", dictionary: Any) -> None:
    """Words that are missing may be there in another form: as pieces, in another language."""
    known = ", ".join(
        repr(dictionary[row]) for row in range(dictionary.nspecial, len(dictionary))[:5]
    )
    typer.echo(
        f"highrank: {name}: no correlation; of {found.used + found.missing} pairs, {found.missing} "
        f"with words that have no vector. The dictionary has words such as {known}",
        err=True,
    )


def unargmaxable(
    checkpoint: Checkpoint,
    data: Data,
    output: Output = None,
    bound: Annotated[
        float | None,
        typer.Option(help="Only features within ± this count: 1 for the output of an LSTM."),
    ] = None,
    plot: Plot = None,
) -> None:
    """Words that no context makes the most probable one, by linear programs.

    For a softmax with any increasing function; of mixtures it says that it does not apply.
    """
    with measuring(plot):
        from highrank_plugins.collect.words import load_vocabulary, unargmaxable_words
        from highrank_plugins.experiments import plots
        from highrank_plugins.experiments.progress_bar import bar

        vocabulary = load_vocabulary(checkpoint, data)
        found = unargmaxable_words(vocabulary, bound, bar)
        total = vocabulary.head.num_classes
        count = None if found.words is None else len(found.words)
        report(found, output, total=total, count=count)
        if plot is not None and count is not None:
            shares = {"can be predicted": total - count, "never": count}
            plots.bars(plot, shares, "words and whether they can win", ("", "words"))


def saturation(
    checkpoints: Annotated[
        list[Path], typer.Argument(help="Of one training, in any order; sorted by updates.")
    ],
    data: Data,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Spectrum of the vocabulary matrix along a training (Godey et al. 2024)."""
    with measuring(plot):
        from highrank_plugins.collect.saturation import saturation as measure
        from highrank_plugins.experiments import plots

        found = measure(checkpoints, data)
        report({"checkpoints": found}, output)
        if plot is not None:
            curve = {s.updates: s.flat_divergence for s in found if s.updates is not None}
            title = "divergence of the spectrum of W from a flat one"
            axes = ("updates", "log d − H, nats")
            plots.lines(plot, {"W": (list(curve), list(curve.values()))}, title, axes)
