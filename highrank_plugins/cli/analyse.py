"""Provide `highrank analyse …`: pages, files and plots of the predictions of checkpoints."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import Checkpoint, Data, UserDir, names, report, require_file
from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.files import plain, read_json, write_json, write_text
from highrank_plugins.common.formatting import Lines
from highrank_plugins.common.names import distinct_names
from highrank_plugins.common.provenance import typed_command
from highrank_plugins.reports import plots

_SEGMENT = {"words": "--segment", "metavar": "N"}


class TextSettings(BlockOptions):
    """Say which text a model is observed along, and how."""

    split: str = option("test", "Split whose contexts are used.")
    tokens: int | None = option(None, "Use only the first N tokens.", ge=2)
    rows: int = option(500, "Number of tokens held in memory at a time.", _SEGMENT, ge=1)
    dtype: Literal["float32", "float64"] = option("float32", "Precision of the model.")
    device: str | None = option(None, "cpu, cuda or cuda:N (default: a GPU if there is one).")


def card(
    checkpoint: Annotated[Path, "Any fairseq checkpoint, ours or stock."],
    data: Annotated[
        str | None, typer.Argument(help="Binarised data to predict (default: weights only).")
    ] = None,
    output: Path | None = option(None, "HTML file (default: CHECKPOINT with the ending .html)."),
    split: str = option("test", "Split of DATA to predict."),
    tokens: int = option(5000, "Use only the first N tokens.", ge=2),
    json: Path | None = option(None, "JSON file to write the numbers to."),
    user_dir: UserDir = None,
) -> None:
    """Write a page about a checkpoint's output layer.

    Example: highrank analyse card checkpoint_best.pt data-bin

    The page also shows the configuration, the divergence and the components. It is one file, which
    needs neither network nor scripts. A section that does not apply to the model is left out.
    More in docs/howto/card.md.
    """
    if data is None and (split, tokens) != ("test", 5_000):
        raise ValueError("--split and --tokens: change nothing without DATA; name it")
    output = checkpoint.with_suffix(".html") if output is None else output
    require_file(output)
    require_file(json, "--json")
    from highrank_plugins.reports.card.gather import make_card
    from highrank_plugins.reports.card.page import render

    made = make_card(checkpoint, data, split, tokens, typed_command())
    write_text(output, render(made))
    if json is not None:
        write_json(json, plain(made.plain()))
    typer.echo(output)


def collect(
    checkpoint: Checkpoint,
    data: Data,
    *,
    output: Path = option(..., "Folder for the .npy files."),
    what: str = option("log_probs,features,targets", "Quantities to write; also logits."),
    settings: TextSettings,
    user_dir: UserDir = None,
) -> None:
    """Write a model's predictions for a text to .npy files.

    Example: highrank analyse collect checkpoint_best.pt data-bin --output arrays

    The files have one row per token and can be memory-mapped. Under torchrun each process takes a
    part of the text.
    """
    from highrank_plugins.inference.collector import Collector, started, write_collection

    with started() as processes:
        quantities = names("--what", what)
        collector = Collector.open(checkpoint, data, **dict(settings), processes=processes)
        done = write_collection(collector, output, quantities)
    if processes.rank == 0:
        report(done)


def spectra(
    results: Annotated[list[Path], "Results of `highrank measure spectrum --output NAME.json`."],
    curve: Literal["relative", "cumulative"] = option(
        "relative", "Curve of --plot: σᵢ/σ₁ over i, or the share of singular values up to each."
    ),
    linear: int | None = option(None, "Plot the first N relative values on linear axes.", ge=2),
    output: Path | None = option(None, "JSON file to write the result to."),
    plot: Path | None = option(None, "Draw into FILE.png, .svg or .pdf."),
) -> None:
    """Show the ranks of several models side by side.

    Example: highrank analyse spectra softmax.json mos.json --plot spectra.svg

    The plot shows the relative singular values, as figure 7 of Parthiban et al. 2021 does with
    --linear 500, or as figure 1 of Yang et al. 2018 does with --curve cumulative.
    """
    plots.check_plot(plot)
    if linear is not None and curve != "relative":
        raise ValueError("--linear draws relative values; leave --curve out")
    if plot is None and (linear, curve) != (None, "relative"):
        raise ValueError("--linear and --curve: change nothing without --plot; add it")
    read = dict(zip(distinct_names(results), map(_spectrum, results), strict=True))
    models = [{"name": name} | numbers for name, (numbers, _) in read.items()]
    report({"models": models}, output)
    if plot is None:
        return
    axes, scale = ("index i of the singular value", "σᵢ / σ₁"), "linear" if linear else "loglog"
    if curve == "cumulative":
        axes, scale = ("σᵢ / σ₁", "share of the singular values up to it"), "linear"
    curves: dict[str, Any] = {}
    for name, (numbers, values) in read.items():
        places = range(1, len(values[:linear]) + 1)
        shares = values[::-1], [place / len(values) for place in places]
        label = f"{name} (rank {numbers['press_rank']:,})"
        curves[label] = shares if curve == "cumulative" else (places, values[:linear])
    plots.draw(plot, Lines(curves, "Singular values of the log-probabilities", axes, scale))


_NUMBERS = (
    "contexts", "words", "dtype", "press_rank", "effective_rank", "spectral_entropy",
)  # fmt: skip


def _spectrum(path: Path) -> tuple[dict[str, Any], list[float]]:
    """Return the numbers in a result of `measure spectrum`, and σᵢ/σ₁."""
    try:
        written: dict[str, Any] = read_json(path)
        values = [float(value) for value in written["singular_values"]]
        if not values or values[0] <= 0:
            raise ValueError("no singular value is above 0")
        return {key: written[key] for key in _NUMBERS}, [value / values[0] for value in values]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a result of highrank measure spectrum ({error!r})") from None


analyse = make_group({"card": card, "collect": collect, "spectra": spectra})
