"""Run the synthetic experiments, which need no corpus, and two tests of trained models.

    python -m recipes.synthetic dirichlet --heads softmax,mos --dim 5

from the root of the repository; `--help` lists the experiments.
"""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from highrank_plugins.cli import as_command, main, make_group, user_errors
from highrank_plugins.cli.options import (
    UserDir,
    echo_markdown,
    names,
    numbers,
    option_problems,
    report,
    require_file,
)
from highrank_plugins.common.blocks import ConfigurationError, read_tree
from highrank_plugins.common.files import write_json
from highrank_plugins.common.folders import held
from highrank_plugins.common.formatting import Bars, Figure, Lines, bar
from highrank_plugins.common.provenance import git_state, hardware, typed_command, versions
from highrank_plugins.reports import plots
from recipes.synthetic.fitting import (
    DirichletSettings,
    MultimodeSettings,
    dirichlet_experiment,
    heads_named,
    multimode_experiment,
)
from recipes.synthetic.gss_grid import gss_grid
from recipes.synthetic.spamlang_grid import (
    grid_cases,
    grid_figures,
    grid_table,
    read_runs,
    run_grid,
)

Output = Annotated[Path | None, typer.Option(help="JSON file to write the result to.")]
Plot = Annotated[Path | None, "Draw into FILE.png, .svg or .pdf."]
Heads = Annotated[str, "Layers, separated by commas: mos, plif (on a softmax), mos+plif, …"]
Components = Annotated[
    int | None, typer.Option(min=1, help="Number of components of mixtures (default: the layer's).")
]
DEFAULT = "softmax,sigsoftmax,gss,plif,moc,mos,mixtape"


def dirichlet(
    *,
    heads: Heads = DEFAULT,
    components: Components = None,
    classes: Annotated[str, "Numbers of words M, separated by commas."] = "100",
    dim: Annotated[str, "Sizes d of contexts and word vectors, separated by commas."] = "10",
    alpha: Annotated[
        str, "Parameters α of the Dirichlet distribution, separated by commas."
    ] = "0.1",
    settings: DirichletSettings,
    output: Output = None,
    plot: Plot = None,
    user_dir: UserDir = None,
) -> None:
    """Fit layers to random distributions.

    Example: python -m recipes.synthetic dirichlet --heads softmax,mos --dim 5

    The experiment is that of Ganea et al. 2019. Reports the share of matched modes and the mean KL
    divergence in nats. One of d, M and α may have several values; --plot then draws both numbers
    over it, a curve per layer.
    """
    plots.check_plot(plot)
    require_file(output)
    chosen = heads_named(names("--heads", heads), components)
    varied: dict[str, list] = {
        "dim": _values("--dim", dim, 1),
        "classes": _values("--classes", classes, 2),
        "alpha": sorted(numbers("--alpha", alpha, float)),
    }
    if not varied["alpha"][0] > 0:
        raise ValueError(f"--alpha {alpha}: must be above 0")
    several = [name for name, values in varied.items() if len(values) > 1]
    if len(several) > 1:
        raise ValueError(
            f"--{several[0]} and --{several[1]}: only one of them may have several values"
        )
    title = f"Dirichlet targets, α = {alpha}"
    sizes = {name: values[0] for name, values in varied.items()}
    settled = settings.model_dump() | sizes
    if not several:
        fits = dirichlet_experiment(chosen, settings, bar, **sizes)
        report({"settings": settled, "fits": fits}, output)
        divergences = {layer: fit.mean_kl for layer, fit in fits.items()}
        figures: list[Figure] = [Bars({"": divergences}, title, ("layer", "mean KL, nats"))]
    else:
        (name,) = several
        values = varied[name]
        found = {
            value: dirichlet_experiment(chosen, settings, bar, **{**sizes, name: value})
            for value in values
        }
        report({"settings": settled | {name: values}, f"fits_by_{name}": found}, output)
        axis = {"dim": "d", "classes": "M", "alpha": "α"}[name]
        figures = [
            Lines(
                {
                    layer: (values, [getattr(found[v][layer], y) for v in values])
                    for layer in chosen
                },
                title,
                (axis, label),
            )
            for y, label in (("mode_match", "share of matched modes"), ("mean_kl", "mean KL, nats"))
        ]
    if plot is not None:
        plots.draw(plot, *figures)


def _values(option: str, text: str, least: int) -> list[int]:
    """Return numbers in ascending order."""
    found = sorted(numbers(option, text, int))
    if found[0] < least:
        raise ValueError(f"{option} {text}: must be at least {least}")
    return found


def _take_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Make the options in a YAML file the defaults of the command."""
    if file is None:
        return None
    with user_errors():
        tree = read_tree(file)
        if "conf" in tree.values:
            place = tree.place(("conf",))
            raise ConfigurationError(f"{place}: conf: write `base: FILE` to inherit")
        found = option_problems(context.command, tree.values)
        problems = [f"{tree.place((name,))}: {name}: {problem}" for name, problem in found]
        if problems:
            raise ConfigurationError("\n".join(problems))
        context.default_map = tree.values
    return file


def spamlang(
    conf: Annotated[
        Path | None,
        typer.Option(
            callback=_take_defaults,
            is_eager=True,
            help="YAML file with defaults of the other options, such as `dim: 16,64`.",
        ),
    ] = None,
    heads: Heads = "softmax,moc,mos,mixtape",
    components: Components = None,
    classes: Annotated[str, "Numbers of symbols M, separated by commas."] = "1000,4000",
    dim: Annotated[str, "Widths d of layer and trunk, separated by commas."] = "16,64",
    backward_rank: Annotated[
        str | None,
        "Ranks r, separated by commas: for each r < d, also train a softmax that passes only "
        "r dimensions of the gradient back.",
    ] = None,
    context_scale: Annotated[
        float, "Length of the contexts of mixtures, see --head-context-scale."
    ] = 1.0,
    steps: Annotated[int, typer.Option(min=1, help="Maximum number of Adam steps.")] = 4000,
    lr: Annotated[float, "Adam's learning rate, which is constant."] = 1e-2,
    seeds: Annotated[str, "Seeds, separated by commas."] = "1,2,3",
    output: Annotated[
        Path | None,
        "JSON file of all runs, for one command at a time. Runs that it holds are not repeated.",
    ] = None,
    table_only: Annotated[
        bool, typer.Option("--table-only", help="Train nothing: show the runs in --output.")
    ] = False,
    plot: Annotated[Path | None, "Draw steps over M into FILE.png, .svg or .pdf."] = None,
    user_dir: UserDir = None,
) -> None:
    """Count the steps to learn texts of repeated symbols.

    Example: python -m recipes.synthetic spamlang --heads softmax,mos --classes 1000 --dim 16

    Prints a table: steps until 99 % of the predictions are right, and the share of the logits'
    gradient that reaches contexts and features at first. The task is that of Godey and Artzi 2026.
    """
    plots.check_plot(plot)
    require_file(output)
    if not 0 < lr < math.inf:
        raise ValueError(f"--lr {lr}: must be above 0, and finite")
    cases = grid_cases(
        names("--heads", heads), _values("--classes", classes, 2),
        _values("--dim", dim, 1), _values("--seeds", seeds, 0),
        backward_ranks=numbers("--backward-rank", backward_rank, int) if backward_rank else (),
        components=components, context_scale=context_scale, steps=steps, lr=lr,
    )  # fmt: skip
    if table_only and (output is None or not output.exists()):
        raise ValueError("--table-only needs --output FILE, the file of earlier runs")
    made = {"command": typed_command(), "versions": versions(), "git": git_state()}
    made["hardware"] = hardware()

    def save(runs: list) -> None:
        if output is not None:
            write_json(output, made | {"runs": runs})

    with contextlib.ExitStack() as stack:
        if output is not None and not table_only:
            lock = output.with_name(f".{output.name}.lock")
            stack.enter_context(held(lock, f"--output {output}", "command that adds runs to it"))
        runs = [] if output is None or not output.exists() else read_runs(output)
        if not table_only:
            runs = run_grid(cases, runs, save, lambda text: typer.echo(text, err=True))
    echo_markdown(grid_table(runs))
    if plot is not None:
        plots.draw(plot, *grid_figures(runs))


def multimode(
    *,
    heads: Heads = DEFAULT,
    components: Components = None,
    settings: MultimodeSettings,
    output: Output = None,
    user_dir: UserDir = None,
) -> None:
    """Test whether layers rank several dissimilar words on top.

    Example: python -m recipes.synthetic multimode --heads softmax,mos --modes 2

    Trains layers on contexts with several correct words each.
    """
    require_file(output)
    chosen = heads_named(names("--heads", heads), components)
    fits = multimode_experiment(chosen, settings, bar)
    report({"settings": settings.model_dump(), "fits": fits}, output)


def contexts(
    checkpoint: Annotated[Path, "Language model."],
    data: Annotated[str, "Its binarised data."],
    file: Annotated[Path, "A context per line, then its next word; or WORD <- CONTEXT."],
    split: Annotated[
        str | None,
        "Split that holds the contexts: carry the recurrent state along it (default: "
        "each context begins a text).",
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Look for the word among the N top ones.")] = 5,
    output: Output = None,
    user_dir: UserDir = None,
) -> None:
    """Check whether a trained model ranks the next word of your contexts on top.

    Example: python -m recipes.synthetic contexts model.pt data-bin contexts.txt

    Yang et al. (2018) and Parthiban et al. (2021) print such contexts.
    """
    require_file(output)
    from recipes.synthetic.contexts import continuations, read_contexts

    found = continuations(checkpoint, data, read_contexts(file), top, split)
    share = sum(one.rank < top for one in found) / len(found)
    report({"top": top, "share": share, "contexts": found}, output)


EXPERIMENTS: dict[str, Callable[..., None]] = {
    "dirichlet": dirichlet,
    "multimode": multimode,
    "spamlang": spamlang,
    "contexts": contexts,
    "gss-grid": gss_grid,
}

if __name__ == "__main__":
    main(as_command(make_group(EXPERIMENTS)), "python -m recipes.synthetic")
