"""Provide `highrank bench loss|profile|roofline|train|generate|estimate|table`."""

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import Changes, UserDir, names, numbers
from highrank_plugins.cli.printing import echo_markdown


def _preset(default: str) -> Any:
    """Return option --preset, which may be repeated."""
    text = "Case or group of benchmarks/presets.yaml; may be repeated."
    return typer.Option(
        "--preset", help=text, default_factory=lambda: [default], show_default=default
    )


Models = Annotated[
    list[str] | None, "Arch and options in quotes, instead of the preset's; may be repeated."
]
LossPreset = Annotated[list[str], _preset("mos_ptb")]
ModelPreset = Annotated[list[str], _preset("ui_strings_en_de")]
Repeats = Annotated[int, typer.Option(min=1, help="Timed repetitions.")]
Turns = Annotated[
    int,
    typer.Option(min=1, help="Number of timed repetitions, which alternate with the baseline's."),
]
Threads = Annotated[
    int, typer.Option(min=0, help="Number of CPU threads of torch; 0: its default.")
]
Device = Annotated[str, "cpu, cuda or cuda:N."]
Dtype = Annotated[str, "float64, float32, bfloat16 or float16."]
Csv = Annotated[Path | None, typer.Option("--csv", help="Also write a CSV file.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Also write a plot (.png, .svg, .pdf).")]


def _sizes(what: str) -> Any:
    """Return an option for sizes that replace a preset's."""
    return typer.Option(help=f"{what} instead of the preset's, separated by commas.")


Tokens = Annotated[str | None, _sizes("Tokens N")]
Components = Annotated[str | None, _sizes("Components K")]
Classes = Annotated[str | None, _sizes("Classes M")]
ChunkMemory = Annotated[
    str | None,
    typer.Option(help="Memory of a chunk in MiB, as --head-loss-memory; 0: the default."),
]
Structure = Annotated[str | None, typer.Option(help="Structure instead of the preset's.")]
Function = Annotated[str | None, typer.Option(help="Pointwise function instead of the preset's.")]


def _layer(**options: str | Path | None) -> dict[str, str]:
    """Return the given options of a layer as text."""
    return {name: str(value) for name, value in options.items() if value is not None}


def loss(
    preset: LossPreset,
    impl: Annotated[
        str,
        "Implementations to time, separated by commas: ours (reference, chunked, fused, "
        "cpp, triton, auto), naive (plain autograd), gathered (the target's log-probability "
        "alone), compiled and gathered_compiled (both by torch.compile), plain_softmax, "
        "linear_cross_entropy, liger, cce.",
    ] = "naive,chunked,fused,cpp,linear_cross_entropy",
    tokens: Tokens = None,
    components: Components = None,
    classes: Classes = None,
    memory: ChunkMemory = None,
    reduction: Annotated[str, "sum or none."] = "sum",
    head: Structure = None,
    pointwise: Function = None,
    within: Annotated[
        int | None,
        typer.Option(
            min=1, help="Time each implementation with the largest batch that fits into N MiB."
        ),
    ] = None,
    dtype: Dtype = "float32", device: Device = "cpu", repeats: Turns = 7, threads: Threads = 0,
    csv: Csv = None, plot: Plot = None, user_dir: UserDir = None,
) -> None:  # fmt: skip
    """Time losses against their matrix products alone.

    Example: highrank bench loss --preset mos_ptb --impl naive,fused

    Times forward and backward passes together.
    """
    from highrank_plugins.benchmarks.run import run_losses

    changes = {"reduction": reduction, "dtype": dtype, "device": device}
    changes |= _layer(head=head, pointwise=pointwise, user_dir=user_dir)
    grid = {"tokens": tokens, "components": components, "classes": classes, "memory": memory}
    implementations = names("--impl", impl)
    failed = run_losses(
        preset, implementations, changes, _grid(grid), within, repeats, threads, csv, plot,
        echo=echo_markdown,
    )  # fmt: skip
    if failed:
        raise typer.Exit(1)


def profile(
    preset: LossPreset,
    impl: Annotated[str, "One implementation of `bench loss`."] = "fused",
    reduction: Annotated[str, "sum or none."] = "sum",
    head: Structure = None,
    pointwise: Function = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 5,
    threads: Threads = 1,
    user_dir: UserDir = None,
) -> None:
    """Show in which of torch's operations a loss spends time.

    Example: highrank bench profile --preset mos_ptb --impl fused
    """
    from highrank_plugins.benchmarks.run import profile_losses

    changes = {"reduction": reduction, "dtype": dtype, "device": device}
    changes |= _layer(head=head, pointwise=pointwise, user_dir=user_dir)
    profile_losses(preset, impl, changes, repeats, threads, echo=echo_markdown)


def roofline(
    preset: Annotated[list[str], "Cases or groups of benchmarks/presets.yaml."],
    gpu: Annotated[str, "GPU to model: h200, h100, a100 or rtx4090."] = "h200",
    impl: Annotated[
        str,
        typer.Option(
            help="Implementations, separated by commas: naive, gathered, chunked, fused, triton; "
            "only one with --whole-step.",
            show_default="naive,fused,triton; triton with --whole-step",
        ),
    ] = "",
    whole_step: Annotated[
        bool, "Model training steps of the models of presets for `bench train`, not losses alone."
    ] = False,
    model: Models = None,
    tokens: Tokens = None,
    components: Components = None,
    classes: Classes = None,
    memory: ChunkMemory = None,
    label_smoothing: Annotated[float | None, "Label smoothing instead of the preset's."] = None,
) -> None:
    """Model time and memory of losses on a GPU you do not have.

    Example: highrank bench roofline mos_ptb --gpu a100

    The numbers are calculated for bfloat16, not measured.
    """
    grid = {"tokens": tokens, "components": components, "classes": classes, "memory": memory}
    changes: dict[str, Any] = {n: _one(n, values) for n, values in _grid(grid).items()}
    changes |= {} if label_smoothing is None else {"label_smoothing": label_smoothing}
    run = _whole_steps if whole_step else _losses
    text = run(preset, model or [], gpu, impl, changes)
    echo_markdown(text, nl=False)


def _losses(
    presets: list[str], models: list[str], gpu: str, impl: str, changes: dict[str, Any]
) -> str:
    from highrank_plugins.benchmarks.roofline import run_roofline

    if models:
        raise ValueError("--model needs --whole-step: a loss alone has no model")
    implementations = names("--impl", impl or "naive,fused,triton")
    return run_roofline(presets, implementations, gpu, changes)


def _whole_steps(
    presets: list[str], models: list[str], gpu: str, impl: str, changes: dict[str, Any]
) -> str:
    from highrank_plugins.benchmarks.whole_step import run_whole_steps

    if changes:
        raise ValueError(
            "--whole-step takes all sizes from the preset: leave out --tokens, --components, "
            "--classes, --memory and --label-smoothing"
        )
    return run_whole_steps(presets, models, impl or "triton", gpu)


def _models(
    kind: str,
    preset: ModelPreset,
    model: Models = None,
    within: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Time each model with the largest batch that fits into N MiB besides weights and "
            "the optimizer's state, and compare by token.",
        ),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Turns = 7,
    threads: Threads = 0,
    csv: Csv = None,
    user_dir: UserDir = None,
) -> None:
    """Share the options of `bench train` and `bench generate`, all but the measured step."""
    from highrank_plugins.benchmarks.run import run_models

    changes = {"dtype": dtype, "device": device}
    if user_dir is not None:
        changes["user_dir"] = str(user_dir)
    failed = run_models(
        kind, preset, model or None, changes, within, repeats, threads, csv, echo=echo_markdown
    )
    if failed:
        raise typer.Exit(1)


def _of_models(kind: str, what: str) -> Callable[..., None]:
    def measure(**options: Any) -> None:
        _models(kind, **options)

    measure.__doc__ = (
        f"Time {what} against the preset's baseline.\n\n"
        f"Example: highrank bench {kind} --preset ui_strings_en_de"
    )
    shared = inspect.signature(_models)
    vars(measure)["__signature__"] = shared.replace(parameters=list(shared.parameters.values())[1:])
    return measure


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
    dtype: Dtype = "float32",
    device: Device = "cpu",
    repeats: Repeats = 7,
    threads: Threads = 0,
) -> None:
    """Estimate hours, memory and cost of whole training runs.

    Example: highrank bench estimate recipes/ptb/conf/small/mos.yaml --devices 4

    Measures one step on this machine and extrapolates.
    """
    from highrank_plugins.benchmarks.estimate import Training, estimates_table, run_estimates
    from highrank_plugins.benchmarks.run import check_device
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
    from highrank_plugins.benchmarks.report import table as as_table
    from highrank_plugins.benchmarks.rows import read_csv

    files = [read_csv(path) for path in csv]
    pages = (f"{rows[0].machine}\n\n{as_table(rows)}" for rows in files)
    echo_markdown("\n".join(pages), nl=False)


def _grid(given: dict[str, str | None]) -> dict[str, list[int]]:
    """Return sizes by name, as numbers."""
    return {n: numbers(f"--{n}", text, int) for n, text in given.items() if text is not None}


def _one(name: str, values: list[int]) -> int:
    """Return the single size that was given."""
    if len(values) > 1:
        raise ValueError(f"--{name}: give one value; the model covers one size per call")
    return values[0]


bench = make_group(
    {
        "loss": loss,
        "profile": profile,
        "roofline": roofline,
        "train": _of_models("train", "whole training steps"),
        "generate": _of_models("generate", "beam search of a batch"),
        "estimate": estimate,
        "table": table,
    }
)
