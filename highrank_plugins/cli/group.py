"""How a group of subcommands is put together."""

from collections.abc import Callable, Mapping

import typer

Commands = Mapping[str, Callable[..., None]]


def make_group(commands: Commands, plumbing: Commands | None = None) -> typer.Typer:
    """Return a group of subcommands in the order of the help; its own help is in `cli.COMMANDS`.

    Args:
        commands: what a person uses.
        plumbing: what recipes call; it works and has a help, but the group's help leaves it out.
    """
    group = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    for name, function in commands.items():
        group.command(name)(function)
    for name, function in (plumbing or {}).items():
        group.command(name, hidden=True)(function)
    return group
