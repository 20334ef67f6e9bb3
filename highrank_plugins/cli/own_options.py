"""Check options of our own subcommands in a configuration before anything is computed."""

from collections.abc import Iterator
from typing import Any

import typer

from highrank_plugins.cli import app
from highrank_plugins.common.names import did_you_mean, flag, option_name
from highrank_plugins.common.yaml_tree import ConfigurationError, Tree
from highrank_plugins.training.command_line import PROGRAMS, program_of, words_of
from highrank_plugins.training.configuration import Configuration


def check_own_options(configuration: Configuration, tree: Tree) -> None:
    """Check names and types in the blocks of `highrank` subcommands.

    Raises:
        ConfigurationError: each unknown name or wrong value, with its file and line.
    """
    problems = [
        f"{tree.place((tool, name))}: {tool}.{name}: {problem}"
        for tool in (*PROGRAMS, *configuration.measures)
        if (program := program_of(tool).words).startswith("highrank ")
        for name, problem in _problems(program, configuration.options(tool))
    ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def _problems(program: str, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    names = program.split()[1:]
    command: Any = typer.main.get_command(app)
    for name in names:
        command = command.get_command(None, name)
    known = {option: p for p in command.params for option in p.opts if option.startswith("--")}
    for option in options:
        if flag(option) not in known:
            near = did_you_mean(option, list(map(option_name, known)))
            yield option, f"{program} has no {flag(option)}{near}"
            continue
        try:
            words = words_of({option: options[option]})
            command.make_context(program, [*_required(command, flag(option)), *words])
        except typer.BadParameter as error:
            yield option, error.message.removeprefix("Value error, ")


def _required(command: Any, given: str) -> list[str]:
    """Return words for all that the command needs, except for one option."""
    words = []
    for parameter in command.params:
        named = parameter.opts[0].startswith("--")
        if parameter.required and given not in parameter.opts:
            words += [parameter.opts[0], "1"] if named else ["1"]
    return words
