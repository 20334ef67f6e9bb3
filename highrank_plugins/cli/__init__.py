"""Define the `highrank` command: thin subcommands over the packages of this project, in groups.

A new subcommand is a function in its group's module or folder, and a line where the group is made.
A group is imported only when it runs or its own help is shown. Keep the top of each module light:
import torch and fairseq inside the functions.
"""

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup
from typer.models import OptionInfo

import highrank_plugins
from highrank_plugins.common.names import did_you_mean, flag
from highrank_plugins.common.user_error import explained, has_no_reader, leave

# group or subcommand → its line in the help, and the typer group or function, as module:name
COMMANDS = {
    "new": ("Make a folder to compare layers on your own text.", "listings:new"),
    "translate": ("Translate lines with a trained model.", "evaluate:translate"),
    "data": ("Fetch, check, clean, split and binarise text.", "data:data"),
    "launch": ("Run fairseq-train on all GPUs of a machine or a cluster.", "train:launch"),
    "evaluate": ("Translate, score, and adapt language models.", "evaluate:evaluate"),
    "measure": ("Measure what a model's output layer does.", "measure:measure"),
    "analyse": ("Show predictions: a card, files, plots of spectra.", "analyse:analyse"),
    "race": ("Train layers alone on a trunk's features.", "compare:race"),
    "compare": ("Compare systems over seeds, by their records.", "compare:compare"),
    "study": ("Run configurations × seeds, and compare them.", "study:study"),
    "ladder": ("Compare at several sizes, and project to a larger one.", "study:ladder"),
    "published": ("Print the papers' scores, and ours.", "compare:published"),
    "record": ("Write the record of a run, for recipes.", "compare:record"),
    "model": ("Average, choose, export and import checkpoints.", "model:model"),
    "bench": ("Measure time and memory of losses and models.", "bench:bench"),
    "list": ("Print all architectures, layers or recipes.", "listings:listings"),
    "doctor": ("Show versions, devices, missing packages; try a disk.", "doctor:doctor"),
    # for recipes and studies
    "train": ("Check a configuration, and write its commands.", "train:train"),
    "match": ("Change widths until two models are equally large.", "train:match"),
    "results": ("Show records alone, for scripts.", "compare:results"),
}
HIDDEN = ("train", "match", "results")

Commands = Mapping[str, Callable[..., None]]


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


def make_group(commands: Commands, plumbing: Commands | None = None) -> typer.Typer:
    """Return a group of subcommands in the order of the help; its own help is in `cli.COMMANDS`.

    `plumbing` is for recipes, and not in the help.
    """
    group = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    group.callback()(lambda: None)  # otherwise a group of one command becomes this command
    for name, function in {**commands, **(plumbing or {})}.items():
        group.command(name, hidden=name not in commands)(with_help(function))
    return group


def with_help(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with typer's options and arguments for its parameters.

    `common.blocks.option` as a default makes an option, and a model of that module one for each
    of its fields. `Annotated[kind, "help"]` is an option with a default and an argument without.
    Options are shown as `--tokens N`, `--output PATH` and `--split SPLIT`. The command refuses an
    output file that would replace an input, hides fairseq's log, and prints the errors that a user
    can correct in one line.
    """
    signature = inspect.signature(command, eval_str=True)
    told: list[inspect.Parameter] = []
    models = {}
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if fields := getattr(kind, "model_fields", None):
            models[name] = kind
            told += [_told(field, info.annotation, info) for field, info in fields.items()]
        else:
            told.append(_told(name, kind, parameter.default))

    @functools.wraps(command)
    def checked(**given: Any) -> None:
        logging.disable(logging.INFO)  # hides fairseq's log
        with user_errors():
            _refuse_replacing(given)
            for name, model in models.items():
                given[name] = _model(model, {of: given.pop(of) for of in model.model_fields})
            command(**given)

    vars(checked)["__signature__"] = signature.replace(parameters=told)
    return checked


def _model(kind: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Return a model of options; a wrong one, such as an infinite rate, is refused by its name."""
    from pydantic import ValidationError  # slow, but a command with a model has imported it

    try:
        return kind(**values)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ValueError(f"{flag(str(wrong['loc'][0]))} {wrong['input']}: {wrong['msg']}") from None


def _told(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a parameter of a command with typer's option or argument."""
    kind, info = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation, None)
    names = [flag(name)] if kind is bool else []  # typer would add `--no-`
    required = inspect.Parameter.empty
    if hasattr(default, "json_schema_extra"):
        shown = {**default.json_schema_extra}
        words = [shown.pop("words")] if "words" in shown else names
        info = typer.Option(*words, help=default.description, **shown)
        default = required if default.is_required() else default.default
    elif isinstance(info, str):
        is_argument = default is required
        info = typer.Argument(help=info) if is_argument else typer.Option(*names, help=info)
    if isinstance(info, OptionInfo) and info.metavar is None:
        word = name.rpartition("_")[2].upper()
        kinds = {kind, *get_args(kind)}.union(*map(get_args, get_args(kind)))
        values = {int: "N", float: word if word == "SECONDS" else "NUMBER", Path: "PATH", str: word}
        info.metavar = next((values[one] for one in values if one in kinds), None)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, info])


# parameters that name a file to write
_OUTPUTS = ("output", "hypotheses", "plot", "csv", "json", "summary", "slurm")


def _refuse_replacing(given: Mapping[str, Any]) -> None:
    """Compare the files that a command writes with those that it reads, and with each other."""
    files: dict[Path, str] = {}
    for name, value in sorted(given.items(), key=lambda item: item[0] in _OUTPUTS):
        for path in value if isinstance(value, list) else [value]:
            if not isinstance(path, Path) or (path.exists() and not path.is_file()):
                continue  # folders have checks of their own, and devices keep nothing
            if files.setdefault(path.resolve(), name) != name and name in _OUTPUTS:
                raise ValueError(
                    f"{flag(name)} {path} would replace another file of this command: name another "
                    "file"
                )


class LazyCommands(TyperGroup):
    """Hold the subcommands of `COMMANDS`, and import each when it is needed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a subcommand; None if there is no such."""
        if cmd_name not in COMMANDS:
            return None
        summary, place = COMMANDS[cmd_name]
        module, attribute = place.split(":")
        with user_errors():  # a new measure may be unfit for a command
            found = getattr(import_module(f"{__name__}.{module}"), attribute)
        if isinstance(found, typer.Typer):
            found.info.help = summary
        command = as_command(found)
        command.hidden = cmd_name in HIDDEN
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, subcommand and remaining arguments; an unknown name is an error."""
        if args[0] not in COMMANDS:
            ctx.fail(f"unknown command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        if args[0] == "launch" and "fairseq-train" in args and "--" not in args:
            ctx.fail("write -- before the command: highrank launch -- fairseq-train …")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options on one line, so that the help fits a screen, and then the commands."""
        names = [option.opts[0] for option in self.params if option.name != "show_completion"]
        formatter.write_paragraph()
        formatter.write_text(f"Options: {', '.join((*names, '--help'))}")
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands' lines of the help, without importing any."""
        with formatter.section("Commands"):
            shown = [(name, line) for name, (line, _) in COMMANDS.items() if name not in HIDDEN]
            formatter.write_dl(shown)


def as_command(found: typer.Typer | Callable[..., None]) -> Any:
    """Return the command of a group or of a function, also for scripts outside the package."""
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode=None)
        found.command()(with_help(function))
    return typer.main.get_command(found)


UsageError: Any = typer.BadParameter.__mro__[1]  # of click, of which newer typers have a copy
app = typer.Typer(cls=LazyCommands, no_args_is_help=True, rich_markup_mode=None,
                  pretty_exceptions_enable=False)  # fmt: skip


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    user_dir: Annotated[
        bool, typer.Option("--user-dir", help="Print the package's folder.")
    ] = False,
) -> None:
    """Output layers for torch; for fairseq with --user-dir $(highrank --user-dir)."""
    if version:
        typer.echo(f"highrank_plugins {highrank_plugins.__version__}")
    if user_dir:
        typer.echo(Path(highrank_plugins.__file__).parent.resolve())
    if version or user_dir:
        raise typer.Exit


def main(command: Any = None, name: str = "highrank") -> None:
    """Run the console script, or a command of `as_command`.

    A wrong subcommand or option is one line, with exit code 2. The code is 1, without a message, if
    the reader of the output has gone (`highrank … | head -1`).
    """
    try:
        try:
            command = command or typer.main.get_command(app)
            code = command.main(prog_name=name, standalone_mode=False)
        except UsageError as error:
            code = 2
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                path = error.ctx.command_path if error.ctx else name
                said = " ".join(error.format_message().split()).removesuffix(".")
                typer.echo(f"{path}: {said}; see {path} --help", err=True)
        except typer.Abort:
            code = 1
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:  # the output failed, or a command did not expect the error
        if has_no_reader():
            leave(1)
        typer.echo(f"highrank: {explained(error)}", err=True)
        leave(2)
    sys.exit(code or 0)
