"""Define what commands share: options, lists in their values, errors, and ways to print."""

import json
import logging
import math
import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import highrank_plugins
from highrank_plugins.cli import UsageError, user_errors
from highrank_plugins.common.blocks import BlockOptions
from highrank_plugins.common.files import plain, write_json, write_text
from highrank_plugins.common.names import flag, option_name
from highrank_plugins.common.provenance import conditions, typed_command
from highrank_plugins.common.user_error import place_in
from highrank_plugins.reports.tables import FORMATS, Table
from highrank_plugins.training.command_line import words_of

# what the code of a package may raise as it is imported
_OF_CODE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError,
    RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


def _import(user_dir: Path | None) -> Path | None:
    if user_dir is None:
        return None
    with user_errors():
        require_code("--user-dir", user_dir)
        logging.disable(logging.INFO)  # hides fairseq's log
        highrank_plugins.register()
        from fairseq.utils import import_user_module

        try:
            import_user_module(Namespace(user_dir=str(user_dir)))
        except _OF_CODE as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            origin = f"{place_in(user_dir, error)}{kind}{' '.join(str(error).split())}"
            raise ValueError(f"--user-dir {user_dir}: {origin}") from error
    return user_dir


def require_code(option: str, folder: Path) -> None:
    """Check that fairseq finds code in a folder; it takes any other for an empty package."""
    if any((folder / name).exists() for name in ("__init__.py", "models", "tasks")):
        return
    raise ValueError(f"{option} {folder}: no __init__.py there; name the folder of a package")


# parsing the option imports the package, so few commands read its value
UserDir = Annotated[
    Path | None, typer.Option(callback=_import, help="Package with layers of your own.")
]
Data = Annotated[str, "Directory with binarised data."]
Checkpoint = Annotated[Path, "Language or translation model, fairseq's or ours."]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override key=value (in block train) or block.key=value; may be repeated.",
    ),
]

Number = TypeVar("Number", int, float, str)
_KINDS: Mapping[Any, str] = {int: "whole numbers", float: "numbers", str: "names"}


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Return the numbers, or the names, in `text`, the value of an option."""
    words = [word.strip() for word in text.split(",")]
    try:
        found = [kind(word) for word in words if word]
    except ValueError:
        found = []
    endless = any(isinstance(value, float) and not math.isfinite(value) for value in found)
    if len(found) < len(words) or endless:
        raise ValueError(f"{option} {text}: expected {_KINDS[kind]} separated by commas")
    if twice := [value for value in found if found.count(value) > 1]:
        raise ValueError(f"{option} {text}: {twice[0]} is given twice; give it once")
    return found


def names(option: str, text: str) -> list[str]:
    return numbers(option, text, str)


def refuse_idle(options: BlockOptions, used: Collection[str], why: str) -> None:
    """Refuse options that are given, not among the `used`, and so would change nothing."""
    for name, field in type(options).model_fields.items():
        if name not in used and getattr(options, name) != field.default:
            shown: Any = field.json_schema_extra
            word = shown.get("words", flag(name))
            raise ValueError(f"{word}: changes nothing {why}; leave it out")


def option_problems(command: Any, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what a command of click refuses, if it does: the option, "" for another, and why."""
    arguments = ["1" for one in command.params if one.param_type_name == "argument"]
    try:
        command.make_context("highrank", [*arguments, *words_of(options)])
    except UsageError as error:
        message = error.format_message().removesuffix(".")
        named = map(option_name, re.findall(r"--[\w-]+", message))
        yield next((name for name in named if name in options), ""), message


def echo_markdown(page: str, nl: bool = True) -> None:
    """Print a page of Markdown, which a terminal shows drawn."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(page))
    else:
        typer.echo(page, nl=nl)


def require_file(output: Path | None, option: str = "--output") -> None:
    """Refuse what cannot become a file, before anything is computed."""
    if output is None:
        return
    if output.is_dir():
        raise ValueError(f"{option} {output} is a directory: name the file to write")
    if output.is_relative_to("/dev") or (output.exists() and not output.is_file()):
        return  # a device or a pipe is written where it is
    place = next(path for path in output.absolute().parents if path.exists())
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise ValueError(f"{option} {output}: {place} cannot be written; name another file")


def print_tables(
    tables: Sequence[Table], output: Path | None = None, format: str | None = None
) -> None:
    """Print tables, or write them: drawn by default on a terminal, else as Markdown."""
    on_terminal = output in (None, Path("-")) and sys.stdout.isatty()
    print_or_write(FORMATS[format or ("terminal" if on_terminal else "markdown")](tables), output)


def print_or_write(text: str, output: Path | None) -> None:
    """Print a text, or write it into the file of --output, whole or not at all; `-` prints."""
    if output is None or output == Path("-"):
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


def report(result: Any, output: Path | None = None) -> None:
    """Print the result, and write it to a JSON file with its provenance."""
    found = plain(result)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    if output is not None:
        write_json(output, with_provenance(found))


def with_provenance(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with what computed it: command, versions, revision and machine."""
    return result | {"command": typed_command()} | conditions()


def assignments(words: list[str]) -> dict[str, str]:
    """Return KEY=VALUE of --option as a mapping, with underscores in keys."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"--option {word}: expected KEY=VALUE")
        if found.setdefault(name.replace("-", "_"), value) != value:
            raise ValueError(f"--option {word}: {name} is given twice; give it once")
    return found
