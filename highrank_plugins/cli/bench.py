"""Provide `highrank bench loss|train|estimate|table`."""

from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.benchmarks import rows
from highrank_plugins.benchmarks.case import BenchSettings
from highrank_plugins.benchmarks.estimate import EstimateSettings, run_estimates
from highrank_plugins.benchmarks.run import Benchmark, run_losses, run_models
from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import Changes, UserDir, echo_markdown, names, numbers
from highrank_plugins.common.blocks import option
from highrank_plugins.training.configuration import load

PRESET = "Case or group of benchmarks/presets.yaml; may be repeated."


class LossSettings(BenchSettings):
    """Hold the losses to time, and their sizes: `highrank bench loss`."""

    impl: str = option(
        "naive,chunked,fused,cpp,linear_cross_entropy",
        "Implementations to time: ours (reference, chunked, fused, cpp, triton, auto), naive "
        "(plain autograd), gathered (the target's log-probability alone), compiled and "
        "gathered_compiled (by torch.compile), plain_softmax, linear_cross_entropy, liger, cce.",
    )
    tokens: str | None = option(None, "Tokens N instead of the preset's, separated by commas.")
    components: str | None = option(None, "Components K, in the same way.")
    classes: str | None = option(None, "Classes M, in the same way.")
    memory: str | None = option(None, "Memory of a chunk in MiB, as --head-loss-memory.")
    head: str | None = option(None, "Structure instead of the preset's.")
    pointwise: str | None = option(None, "Pointwise function instead of the preset's.")


def loss(
    *,
    preset: list[str] = option(["mos_ptb"], PRESET),
    settings: LossSettings,
    user_dir: UserDir = None,
) -> None:
    """Time losses against their matrix products alone.

    Example: highrank bench loss --preset mos_ptb --impl naive,fused

    Times forward and backward passes together.
    """
    given = {name: getattr(settings, name) for name in ("head", "pointwise")}
    changes = settings.changes(**given, user_dir=user_dir)
    sizes = {n: getattr(settings, n) for n in ("tokens", "components", "classes", "memory")}
    grid = {n: numbers(f"--{n}", text, int) for n, text in sizes.items() if text is not None}
    implementations = names("--impl", settings.impl)
    benchmark = Benchmark("loss", settings, echo_markdown)
    if run_losses(preset, implementations, changes, grid, benchmark):
        raise typer.Exit(1)


def train(
    *,
    preset: list[str] = option(["ui_strings_en_de"], PRESET),
    settings: BenchSettings,
    model: list[str] | None = option(None, "Arch and options in quotes; may be repeated."),
    generate: bool = option(False, "Time beam search of a batch instead of training."),
    user_dir: UserDir = None,
) -> None:
    """Time whole training steps against the preset's baseline.

    Example: highrank bench train --preset ui_strings_en_de
    """
    benchmark = Benchmark("generate" if generate else "train", settings, echo_markdown)
    if run_models(preset, model, settings.changes(user_dir=user_dir), benchmark):
        raise typer.Exit(1)


def estimate(
    file: Annotated[list[Path], "Configurations, conf/NAME.yaml."],
    settings: EstimateSettings,
    change: Changes = None,
) -> None:
    """Estimate hours, memory and cost of whole training runs.

    Example: highrank bench estimate recipes/wmt14_en_de/conf/small/mos.yaml --devices 4

    Measures one step on this machine and extrapolates.
    """
    if run_estimates({str(path): load(path, change) for path in file}, settings, echo_markdown):
        raise typer.Exit(1)


def table(csv: Annotated[list[Path], "CSV files of --csv."]) -> None:
    """Print a table for each CSV file of measurements.

    Example: highrank bench table losses.csv
    """
    files = [rows.read_csv(path) for path in csv]
    pages = (f"{file[0].machine}\n\n{rows.table(file)}" for file in files)
    echo_markdown("\n".join(pages), nl=False)


bench = make_group({"loss": loss, "train": train, "estimate": estimate}, {"table": table})
