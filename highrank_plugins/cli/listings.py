"""Provide `highrank list`: what exists."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import highrank_plugins
from highrank_plugins.cli.options import UserDir, echo_markdown
from highrank_plugins.common.formatting import table

if TYPE_CHECKING:
    from highrank_plugins.heads.registry import Registry


def listings(
    what: Annotated[Literal["archs", "heads", "recipes"], "archs, heads or recipes."],
    user_dir: UserDir = None,
) -> None:
    """Print all architectures, layers or recipes.

    Example: highrank list archs > archs.md

    Layers have structures, pointwise functions and options, recipes what they train and their
    configurations. Writes Markdown tables to a file, and draws tables and lists on a terminal.
    """
    if what == "archs":
        highrank_plugins.register()
        # imported by name, because mypy does not check the dataclasses that fairseq reads
        echo_markdown(import_module("highrank_plugins.models.arch_table").arch_table(), nl=False)
    else:
        {"heads": _heads, "recipes": _recipes}[what]()


def _heads() -> None:
    from highrank_plugins.heads.base import HEADS
    from highrank_plugins.heads.pointwise import POINTWISE
    from highrank_plugins.heads.vocabulary import VOCABULARY
    from highrank_plugins.losses import IMPLEMENTATIONS
    from highrank_plugins.losses.nll import FUSED

    plain = [impl for impl in IMPLEMENTATIONS if impl not in FUSED]
    structures = [
        (*row, ", ".join(IMPLEMENTATIONS if HEADS.find(name).fused else plain))
        for name, row in _rows(HEADS)
    ]
    echo_markdown(table(("structure", "what it is", "options", "losses"), structures))
    functions = [row for _, row in _rows(POINTWISE)]
    echo_markdown(table(("pointwise function", "what it is", "options"), functions))
    matrices = [row for _, row in _rows(VOCABULARY)]
    echo_markdown(table(("vocabulary matrix", "what it is", "options"), matrices))
    typer.echo(
        "In Python: build_head(STRUCTURE, pointwise=FUNCTION, vocabulary=MATRIX, …)\n"
        "In fairseq: --head STRUCTURE --head-OPTION VALUE\n"
        "            --head-pointwise FUNCTION --head-FUNCTION-OPTION VALUE\n"
        "            --head-vocabulary MATRIX --head-MATRIX-OPTION VALUE"
    )


def _rows(registry: "Registry[Any]") -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each name with its row: name, first line of the docstring, options with defaults."""
    for name in registry.names():
        what = (inspect.getdoc(registry.find(name)) or "").partition("\n")[0]
        defaults = registry.options(name).items()
        required = inspect.Parameter.empty  # where the default is None, the layer chooses a value
        shown = {
            option: "(required)" if value is required
            else "" if value is None
            else str(value).lower() if isinstance(value, bool)
            else value
            for option, value in defaults
        }  # fmt: skip
        options = ", ".join(f"{option} {value}".rstrip() for option, value in shown.items())
        yield name, (f"`{name}`", what, options)


def _recipes() -> None:
    folder = Path(highrank_plugins.__file__).parents[1] / "recipes"
    scripts = sorted(folder.glob("*/run.sh"))
    if not scripts:
        raise ValueError(
            f"{folder}: there are no recipes here; they come with a clone of the repository"
        )
    rows = []
    for script in scripts:
        _, header, *_ = script.read_text(encoding="utf-8").splitlines()
        subject, confs = header.removeprefix("#").strip(), _confs(script.parent)
        rows.append([f"`recipes/{script.parent.name}/run.sh`", subject, confs])
    echo_markdown(table(["recipe", "trains", "configurations (--conf)"], rows), nl=False)


def _confs(recipe: Path) -> str:
    """Return the names for --conf, without configurations that only serve as a base."""
    conf = recipe / "conf"
    folders: dict[str, list[str]] = {}
    for path in sorted(conf.rglob("*.yaml")):
        if not path.stem.startswith("base"):
            folders.setdefault(str(path.parent.relative_to(conf)), []).append(path.stem)
    return " ".join(
        f"{'' if folder == '.' else f'{folder}/'}{{{','.join(names)}}}"
        for folder, names in folders.items()
    )
