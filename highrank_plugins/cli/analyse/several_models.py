"""Compare models: `highrank analyse spectra`, `disagreements` and `bleu`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from highrank_plugins.cli.analyse.running import (
    Checkpoint,
    Output,
    Plot,
    Segment,
    Split,
    Tokens,
    measuring,
    report,
)
from highrank_plugins.cli.options import Data, Device, UserDir
from highrank_plugins.common import score

if TYPE_CHECKING:
    from highrank_plugins.common.formatting import Series


def spectra(
    results: Annotated[list[Path], "Results of `analyse spectrum --output NAME.json`."],
    curve: Annotated[
        Literal["relative", "cumulative"],
        "Curve of --plot: σᵢ/σ₁ over i, or the share of singular values up to each σᵢ/σ₁.",
    ] = "relative",
    linear: Annotated[
        int | None, typer.Option(min=2, help="Plot the first N relative values on linear axes.")
    ] = None,
    output: Output = None,
    plot: Plot = None,
) -> None:
    """Show the ranks of several models side by side.

    Example: highrank analyse spectra softmax.json mos.json --plot spectra.svg

    The plot shows the relative singular values, as figure 7 of Parthiban et al. 2021 does with
    --linear 500, or as figure 1 of Yang et al. 2018 does with --curve cumulative.
    """
    with measuring(plot):
        from highrank_plugins.common.formatting import Lines
        from highrank_plugins.common.names import distinct_names
        from highrank_plugins.reports.plots import draw

        if linear is not None and curve != "relative":
            raise ValueError("--linear draws relative values; leave --curve out")
        read = dict(zip(distinct_names(results), map(_spectrum, results), strict=True))
        models = [{"name": name} | numbers for name, (numbers, _) in read.items()]
        report({"models": models}, output)
        if plot is not None:
            draw_curve = _cumulative if curve == "cumulative" else _relative
            curves = {
                f"{name} (rank {numbers['press_rank']:,})": draw_curve(values[:linear])
                for name, (numbers, values) in read.items()
            }
            axes, scale = ("index i of the singular value", "σᵢ / σ₁"), "loglog"
            if curve == "cumulative":
                axes, scale = ("σᵢ / σ₁", "share of the singular values up to it"), "linear"
            elif linear is not None:
                scale = "linear"
            draw(plot, Lines(curves, "Singular values of the log-probabilities", axes, scale))


_NUMBERS = (
    "contexts", "words", "dtype", "press_rank", "effective_rank", "spectral_entropy",
)  # fmt: skip


def _spectrum(path: Path) -> tuple[dict[str, Any], list[float]]:
    """Return the numbers in a result of `analyse spectrum`, and σᵢ/σ₁."""
    from highrank_plugins.common.files import read_json

    try:
        written: dict[str, Any] = read_json(path)
        values = [float(value) for value in written["singular_values"]]
        if not values or values[0] <= 0:
            raise ValueError("no singular value is above 0")
        return {key: written[key] for key in _NUMBERS}, [value / values[0] for value in values]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a result of analyse spectrum ({error!r})") from None


def _relative(values: list[float]) -> "Series":
    """Return the curve of descending relative values over their index."""
    return range(1, len(values) + 1), values


def _cumulative(values: list[float]) -> "Series":
    """Return the curve of the share of values up to each of them."""
    return values[::-1], [(i + 1) / len(values) for i in range(len(values))]


def disagreements(
    first: Checkpoint,
    second: Annotated[Path, "A model with the same dictionary."],
    data: Data,
    margin: Annotated[float, "Show tokens whose −log P differs by at least this, in nats."] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="Number of tokens to show.")] = 20,
    words: Annotated[int, typer.Option(min=1, help="Number of words to show before each.")] = 30,
    top: Annotated[int, typer.Option(min=1, help="Number of most probable words to show.")] = 5,
    split: Split = "test",
    tokens: Tokens = None,
    segment: Segment = 500,
    device: Device = None,
    contexts: Annotated[
        Path | None, "File to write for `python -m recipes.synthetic contexts`."
    ] = None,
    output: Output = None,
    user_dir: UserDir = None,
) -> None:
    """Find the tokens that the first model predicts better.

    Example: highrank analyse disagreements mos.pt moc.pt data-bin --margin 2

    The widest margin comes first. Yang et al. (2018) chose the contexts of their table 14 in this
    way, with MoS and MoC.
    """
    with measuring(None):
        from highrank_plugins.common.files import write_text
        from highrank_plugins.inference import disagreements as observed
        from highrank_plugins.inference.collector import Collector

        collectors = [
            Collector.open(path, data, split, tokens=tokens, rows=segment, device=device)
            for path in (first, second)
        ]
        if math.isnan(margin):
            raise ValueError(f"--margin {margin}: must be a number of nats")
        found = observed.compare(*collectors, margin=margin, count=count, words=words, top=top)
        report(found, output)
        if contexts is not None:
            lines = [f"{one.context} {one.word}\n" for one in found.disagreements if one.context]
            write_text(contexts, "".join(lines).replace("</s>", "<eos>"))
            if len(lines) < len(found.disagreements):
                typer.echo(f"{contexts}: the first word of the text has no context", err=True)


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
        score.Tokens | None, "Tokens of sacreBLEU. [default: by the script of the references]"
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
        from highrank_plugins.common.formatting import Bars
        from highrank_plugins.common.names import distinct_names
        from highrank_plugins.reports.plots import draw
        from highrank_plugins.results.scoring import read_lines

        names = distinct_names(systems)
        texts = {str(path): read_lines(path) for path in systems}
        references = [read_lines(path) for path in reference]
        bleu = BLEU(tokenize=score.bleu_tokens(references[0], bleu_tokens))
        found = paired_bleu(texts, references, test, samples, bleu)
        report(found, output, test=test)
        if plot is not None:
            values = (score.score for score in found.scores)
            scores = dict(zip(names, values, strict=True))
            draw(plot, Bars.of(scores, "sacreBLEU", ("system", "BLEU")))
