"""`highrank heads`: the layers, their options, and how their losses are computed."""

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from highrank_plugins.cli.user_layers import UserDir

if TYPE_CHECKING:
    from highrank_plugins.heads.registry import Registry


def heads(user_dir: UserDir = None) -> None:
    """Print all structures and pointwise functions, with their options, as Markdown tables."""
    from highrank_plugins.common.markdown import table
    from highrank_plugins.heads.base import HEADS
    from highrank_plugins.heads.pointwise import POINTWISE
    from highrank_plugins.losses import IMPLEMENTATIONS
    from highrank_plugins.losses.nll import FUSED

    plain = [impl for impl in IMPLEMENTATIONS if impl not in FUSED]
    structures = [
        (*row, ", ".join(IMPLEMENTATIONS if HEADS.find(name).fused else plain))
        for name, row in _rows(HEADS)
    ]
    typer.echo(table(("structure", "what it is", "options", "losses"), structures))
    functions = [row for _, row in _rows(POINTWISE)]
    typer.echo(table(("pointwise function", "what it is", "options"), functions))
    typer.echo(
        "Flags of fairseq: --head STRUCTURE, --head-OPTION; --head-pointwise FUNCTION, "
        "--head-FUNCTION-OPTION."
    )


def _rows(registry: "Registry[Any]") -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each name with its row: name, first line of the docstring, options with defaults."""
    for name in registry.names():
        what = (inspect.getdoc(registry.find(name)) or "").partition("\n")[0]
        options = ", ".join(f"{key} {_shown(v)}" for key, v in registry.options(name).items())
        yield name, (f"`{name}`", what.replace("|", "\\|"), options)


def _shown(default: Any) -> str:
    return "(required)" if default is inspect.Parameter.empty else str(default)
