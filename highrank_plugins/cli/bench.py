"""Provide `highrank bench loss|train|estimate|table`."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from highrank_plugins.benchmarks.case import BenchSettings
from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import Changes, UserDir, names, numbers
from highrank_plugins.cli.printing import echo_markdown


def _preset(default: str) -> Any:
    """Return option --preset, which may be repeated."""
    text = "Case or group of benchmarks/presets.yaml; may be repeated."
    return typer.Option(
        "--preset", help=text, default_factory=lambda: [default], show_default=default
    )


LossPreset = Annotated[list[str], _preset("mos_ptb")]
ModelPreset = Annotated[list[str], _preset("ui_strings_en_de")]


def loss(
    preset: LossPreset,
    settings: BenchSettings,
    impl: Annotated[
        str | None,
        "Implementations to time, separated by commas: ours (reference, chunked, fused, "
        "cpp, triton, auto), naive (plain autograd), gathered (the target's log-probability "
        "alone), compiled and gathered_compiled (both by torch.compile), plain_softmax, "
        "linear_cross_entropy, liger, cce (default: naive, chunked, fused, cpp and "
        "linear_cross_entropy; with --profile, fused).",
    ] = None,
    tokens: Annotated[str | None, "Tokens N instead of the preset's, separated by commas."] = None,
    components: Annotated[
        str | None, "Components K instead of the preset's, separated by commas."
    ] = None,
    classes: Annotated[
        str | None, "Classes M instead of the preset's, separated by commas."
    ] = None,
    memory: Annotated[
        str | None, "Memory of a chunk in MiB, as --head-loss-memory; 0: the default."
    ] = None,
    reduction: Annotated[str, "sum or none."] = "sum",
    head: Annotated[str | None, "Structure instead of the preset's."] = None,
    pointwise: Annotated[str | None, "Pointwise function instead of the preset's."] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show in which of torch's operations the time goes.")
    ] = False,
    plot: Annotated[Path | None, "Also write a plot (.png, .svg, .pdf)."] = None,
    user_dir: UserDir = None,
) -> None:
    """Time losses against their matrix products alone.

    Example: highrank bench loss --preset mos_ptb --impl naive,fused

    Times forward and backward passes together.
    """
    from highrank_plugins.benchmarks.run import Benchmark, profile_losses, run_losses

    changes = settings.changes(
        reduction=reduction, head=head, pointwise=pointwise, user_dir=user_dir
    )
    sizes = {"tokens": tokens, "components": components, "classes": classes, "memory": memory}
    grid = {n: numbers(f"--{n}", text, int) for n, text in sizes.items() if text is not None}
    default = "fused" if profile else "naive,chunked,fused,cpp,linear_cross_entropy"
    implementations = names("--impl", impl or default)
    benchmark = Benchmark("loss", settings, echo_markdown)
    if profile:
        unused = {"--within": settings.within, "--csv": settings.csv, "--plot": plot}
        if wrong := [name for name, value in unused.items() if value is not None]:
            raise ValueError(f"{wrong[0]} has no effect with --profile; leave one of them out")
        profile_losses(preset, implementations, changes, grid, benchmark)
    elif run_losses(preset, implementations, changes, grid, benchmark, plot):
        raise typer.Exit(1)


def train(
    preset: ModelPreset,
    settings: BenchSettings,
    model: Annotated[
        list[str] | None, "Arch and options in quotes, instead of the preset's; may be repeated."
    ] = None,
    generate: Annotated[
        bool, typer.Option("--generate", help="Time beam search of a batch instead of training.")
    ] = False,
    user_dir: UserDir = None,
) -> None:
    """Time whole training steps against the preset's baseline.

    Example: highrank bench train --preset ui_strings_en_de
    """
    from highrank_plugins.benchmarks.run import Benchmark, run_models

    benchmark = Benchmark("generate" if generate else "train", settings, echo_markdown)
    if run_models(preset, model, settings.changes(user_dir=user_dir), benchmark):
        raise typer.Exit(1)


def estimate(
    file: Annotated[list[Path], "Configurations, conf/NAME.yaml."],
    change: Changes = None,
    devices: Annotated[int, typer.Option(min=1, help="Number of devices to train on.")] = 1,
    efficiency: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of its speed that each device keeps when several train together.",
        ),
    ] = 1.0,
    price: Annotated[
        float | None, typer.Option(min=0, help="Price of a device per hour, in any currency.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of the measured step (default: the file's max_tokens)."),
    ] = None,
    dtype: Annotated[str, "float64, float32, bfloat16 or float16."] = "float32",
    device: Annotated[str, "cpu, cuda or cuda:N."] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Timed repetitions.")] = 7,
    threads: Annotated[
        int, typer.Option(min=0, help="Number of CPU threads of torch; 0: its default.")
    ] = 0,
) -> None:
    """Estimate hours, memory and cost of whole training runs.

    Example: highrank bench estimate recipes/ptb/conf/small/mos.yaml --devices 4

    Measures one step on this machine and extrapolates.
    """
    from highrank_plugins.benchmarks.case import check_device
    from highrank_plugins.benchmarks.estimate import Training, estimates_table, run_estimates
    from highrank_plugins.training.configuration import load

    logging.disable(logging.INFO)  # hides fairseq's log
    check_device(device)
    trainings = [Training.of(str(path), load(path, change), devices) for path in file]
    changes = {"dtype": dtype, "device": device}
    estimates = run_estimates(trainings, batch, changes, repeats, threads, echo=echo_markdown)
    typer.echo(f"\n{estimates[0].machine}\n")
    echo_markdown(estimates_table(estimates, devices, efficiency, price), nl=False)
    if len(estimates) < len(trainings):
        raise typer.Exit(1)


def table(csv: Annotated[list[Path], "CSV files of --csv."]) -> None:
    """Print a table for each CSV file of measurements.

    Example: highrank bench table losses.csv
    """
    from highrank_plugins.benchmarks.rows import read_csv
    from highrank_plugins.benchmarks.rows import table as as_table

    files = [read_csv(path) for path in csv]
    pages = (f"{rows[0].machine}\n\n{as_table(rows)}" for rows in files)
    echo_markdown("\n".join(pages), nl=False)


bench = make_group({"loss": loss, "train": train, "estimate": estimate}, {"table": table})
