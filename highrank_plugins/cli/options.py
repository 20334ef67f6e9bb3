"""Define what commands share: options, lists in their values, errors, and ways to print."""

import json
import logging
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from highrank_plugins.common.names import did_you_mean, flag, option_name
from highrank_plugins.common.user_error import explained, has_no_reader, place_in

if TYPE_CHECKING:
    from highrank_plugins.reports.tables import Table

# what the code of a package may raise as it is imported
_OF_CODE = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError,
    RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


@contextmanager
def user_errors() -> Iterator[None]:
    """Report ValueError, FloatingPointError (messages say where) and OSError without traceback."""
    try:
        yield
    except (ValueError, OSError, FloatingPointError) as error:
        if isinstance(error, BrokenPipeError) and has_no_reader():
            raise
        typer.echo(f"highrank: {explained(error)}", err=True)
        raise typer.Exit(2) from None


def _import(user_dir: Path | None) -> Path | None:
    if user_dir is None:
        return None
    with user_errors():
        require_code("--user-dir", user_dir)
        logging.disable(logging.INFO)  # hides fairseq's log
        import highrank_plugins

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
    if not folder.is_dir():
        what = "not a folder" if folder.exists() else "no such folder"
        raise ValueError(f"{option} {folder}: {what}; name the folder of a package with layers")
    if not any((folder / name).exists() for name in ("__init__.py", "models", "tasks")):
        raise ValueError(
            f"{option} {folder}: the folder has no __init__.py; name the folder of a package with "
            "layers"
        )


# parsing the option imports the package, so few commands read its value
UserDir = Annotated[
    Path | None,
    typer.Option(
        "--user-dir",
        callback=_import,
        help="Package with layers of your own, as in fairseq.",
    ),
]


Data = Annotated[str, "Directory with binarised data."]
Checkpoint = Annotated[Path, "Language or translation model, fairseq's or ours."]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value: key=value (in block train) or block.key=value; may be repeated.",
    ),
]

Number = TypeVar("Number", int, float)


def names(option: str, text: str) -> list[str]:
    """Return the names in `text`, the value of an option."""
    found = [word.strip() for word in text.split(",")]
    if "" in found:
        raise ValueError(f"{option} {text!r}: expected names separated by commas")
    _refuse_repeated(option, text, found)
    return found


def numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Return the numbers in `text`, the value of an option."""
    try:
        found = [kind(word) for word in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"{option} {text}: expected {what} separated by commas") from None
    _refuse_repeated(option, text, found)
    return found


def _refuse_repeated(option: str, text: str, values: Sequence[str | float]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{option} {text}: {value} is given twice; give it once")


def option_problems(
    command: Any, program: str, options: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each option that a command of click does not have or does not accept, and why."""
    from highrank_plugins.training.command_line import words_of

    known = [name for p in command.params for name in p.opts if name.startswith("--")]
    for name, value in options.items():
        if flag(name) not in known:
            near = did_you_mean(name, list(map(option_name, known)))
            yield name, f"{program} has no {flag(name)}{near}"
            continue
        others = [p.opts[0] for p in command.params if p.required and flag(name) not in p.opts]
        placeholders = [w for other in others for w in ([other] * other.startswith("--") + ["1"])]
        try:
            command.make_context(program, [*placeholders, *words_of({name: value})])
        except typer.BadParameter as error:
            yield name, error.message.removeprefix("Value error, ")


def echo_markdown(page: str, nl: bool = True) -> None:
    """Print a page of Markdown, which a terminal shows drawn."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(page))
    else:
        typer.echo(page, nl=nl)


def is_printed(output: Path | None) -> bool:
    """Whether --output names no file; `-` is standard output."""
    return output in (None, Path("-"))


def print_tables(
    tables: "Sequence[Table]", output: Path | None = None, format: str | None = None
) -> None:
    """Print tables, or write them: drawn by default on a terminal, else as Markdown."""
    from highrank_plugins.reports.tables import FORMATS

    on_terminal = is_printed(output) and sys.stdout.isatty()
    print_or_write(FORMATS[format or ("terminal" if on_terminal else "markdown")](tables), output)


def print_or_write(text: str, output: Path | None) -> None:
    """Print a text, or write it into the file of --output, whole or not at all."""
    from highrank_plugins.common.files import write_text

    if output is None or is_printed(output):
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


def report(result: Any, output: Path | None) -> None:
    """Print the result, and write it to a JSON file with its provenance."""
    from highrank_plugins.common.files import plain, write_json

    found = plain(result)
    typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
    if output is not None:
        write_json(output, with_provenance(found))


def with_provenance(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with what computed it: command, versions, revision and machine."""
    from highrank_plugins.common.provenance import conditions, typed_command

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
