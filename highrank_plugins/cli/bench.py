"""`highrank bench loss|train|generate|table`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from highrank_plugins.cli.user_error import user_errors

bench = typer.Typer(no_args_is_help=True, help="Time and memory of losses, training, translation.")

Preset = Annotated[
    list[str], typer.Option("--preset", help="Case or group of benchmarks/presets.yaml.")
]
Repeats = Annotated[int, typer.Option(min=1, help="Timed repetitions, in turns with the baseline.")]
Threads = Annotated[int, typer.Option(min=0, help="CPU threads of torch; 0: its own choice.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write a CSV file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Also write a plot (.png, .svg, .pdf).")]
Sizes = Annotated[
    str | None, typer.Option(help="Sizes instead of the preset's, separated by commas.")
]


@bench.command("loss")
def loss(
    preset: Preset = ["mos_ptb"],  # noqa: B006  (typer copies it)
    impl: Annotated[
        str,
        typer.Option(
            help="Contenders, separated by commas: levels of our losses, usual, "
            "linear_cross_entropy, liger, cce."
        ),
    ] = "usual,chunked,fused,linear_cross_entropy",
    tokens: Sizes = None,
    components: Sizes = None,
    classes: Sizes = None,
    reduction: Annotated[str, typer.Option(help="sum or none.")] = "sum",
    within: Annotated[
        int | None,
        typer.Option(min=1, help="MiB: each contender with the largest batch that stays below."),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 7,
    threads: Threads = 0,
    csv: Csv = None,
    plot: Plot = None,
) -> None:
    """Losses, forward and backward, against their matrix products alone."""
    from highrank_plugins.benchmarks.run import run_losses

    changes = {"reduction": reduction, "dtype": dtype, "device": device}
    grid = {"tokens": tokens, "components": components, "classes": classes}
    with user_errors():
        contenders = [name.strip() for name in impl.split(",")]
        failed = run_losses(
            preset, contenders, changes, _grid(grid), within, repeats, threads, csv, plot,
            echo=typer.echo,
        )  # fmt: skip
    if failed:
        raise typer.Exit(1)


@bench.command("train")
def train(
    preset: Preset = ["ui_strings_en_de"],  # noqa: B006
    contender: Annotated[
        list[str] | None,
        typer.Option(help="Arch and its options, in quotes; instead of the preset's."),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 7,
    threads: Threads = 0,
    csv: Csv = None,
) -> None:
    """Whole training steps against the stock Transformer's."""
    _models("train", preset, contender, dtype, device, repeats, threads, csv)


@bench.command("generate")
def generate(
    preset: Preset = ["ui_strings_en_de"],  # noqa: B006
    contender: Annotated[
        list[str] | None,
        typer.Option(help="Arch and its options, in quotes; instead of the preset's."),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 5,
    threads: Threads = 0,
    csv: Csv = None,
) -> None:
    """Beam search of a batch against the stock Transformer's."""
    _models("generate", preset, contender, dtype, device, repeats, threads, csv)


@bench.command("table")
def table(csv: Annotated[list[Path], typer.Argument(help="CSV files of --csv.")]) -> None:
    """Print the table of measurements that were kept."""
    from highrank_plugins.benchmarks.report import table as as_table
    from highrank_plugins.benchmarks.rows import read_csv

    with user_errors():
        typer.echo(as_table([row for path in csv for row in read_csv(path)]), nl=False)


def _models(
    kind: str,
    names: list[str],
    contenders: list[str] | None,
    dtype: str,
    device: str,
    repeats: int,
    threads: int,
    csv: Path | None,
) -> None:
    from highrank_plugins.benchmarks.run import run_models

    changes: dict[str, Any] = {"dtype": dtype, "device": device}
    with user_errors():
        failed = run_models(
            kind, names, contenders, changes, repeats, threads, csv, echo=typer.echo
        )
    if failed:
        raise typer.Exit(1)


def _grid(given: dict[str, str | None]) -> dict[str, list[int]]:
    """Sizes by name, as numbers.

    Raises:
        ValueError: no number; names the option.
    """
    grid = {}
    for name, text in given.items():
        if text is None:
            continue
        try:
            grid[name] = [int(word) for word in text.split(",")]
        except ValueError:
            raise ValueError(f"--{name} {text}: expected numbers separated by commas") from None
    return grid
