"""Provide `highrank list archs|heads|recipes` and `user-dir`, to list what exists."""

import inspect
import logging
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import highrank_plugins
from highrank_plugins.cli import make_group
from highrank_plugins.cli.options import UserDir
from highrank_plugins.cli.printing import echo_markdown

if TYPE_CHECKING:
    from highrank_plugins.heads.registry import Registry


def archs(user_dir: UserDir = None) -> None:
    """Print all architectures.

    Example: highrank list archs > archs.md

    Writes the Markdown of docs/reference/archs.md to a file, and draws tables on a terminal.
    """
    logging.disable(logging.INFO)  # hides fairseq's log
    highrank_plugins.register()
    # imported by name, because mypy does not check the dataclasses that fairseq reads
    echo_markdown(import_module("highrank_plugins.models.arch_table").arch_table(), nl=False)


def heads(user_dir: UserDir = None) -> None:
    """Print all structures, pointwise functions and options.

    Example: highrank list heads

    Writes two Markdown tables to a file, and a list to a terminal.
    """
    from highrank_plugins.common.formatting import table
    from highrank_plugins.heads.base import HEADS
    from highrank_plugins.heads.pointwise import POINTWISE
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
    typer.echo(
        "In Python: build_head(STRUCTURE, pointwise=FUNCTION, OPTION=VALUE, …)\n"
        "In fairseq: --head STRUCTURE --head-OPTION VALUE\n"
        "            --head-pointwise FUNCTION --head-FUNCTION-OPTION VALUE"
    )


def _rows(registry: "Registry[Any]") -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each name with its row: name, first line of the docstring, options with defaults."""
    for name in registry.names():
        what = (inspect.getdoc(registry.find(name)) or "").partition("\n")[0]
        defaults = registry.options(name).items()
        options = ", ".join(f"{option} {_shown(value)}".rstrip() for option, value in defaults)
        yield name, (f"`{name}`", what, options)


def _shown(default: Any) -> str:
    if default is None:  # the layer chooses the value
        return ""
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    return "(required)" if default is inspect.Parameter.empty else shown


def recipes() -> None:
    """Print all recipes and their configurations.

    Example: highrank list recipes

    The output says what each recipe trains: a Markdown table in a file, a list on a terminal.
    """
    from highrank_plugins.common.formatting import table

    folder = Path(highrank_plugins.__file__).parents[1] / "recipes"
    scripts = sorted(folder.glob("*/run.sh"))
    if not scripts:
        raise ValueError(
            f"{folder}: there are no recipes here; they come with a clone of the repository"
        )
    rows = [
        [f"`recipes/{script.parent.name}/run.sh`", _subject(script), _confs(script.parent)]
        for script in scripts
    ]
    echo_markdown(table(["recipe", "trains", "configurations (--conf)"], rows), nl=False)


def _subject(script: Path) -> str:
    """Return the first sentence of a script's header."""
    _, *lines = script.read_text(encoding="utf-8").splitlines()
    return lines[0].removeprefix("#").strip()


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


def user_dir() -> None:
    """Print the directory for fairseq's --user-dir.

    Example: highrank user-dir

    In a command: fairseq-train data-bin --user-dir $(highrank user-dir) …
    """
    typer.echo(Path(highrank_plugins.__file__).parent.resolve())


listings = make_group({"archs": archs, "heads": heads, "recipes": recipes})
