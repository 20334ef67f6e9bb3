"""Provide `highrank train …`: turn a configuration into commands, and train by it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from highrank_plugins.cli import app, make_group, with_help
from highrank_plugins.cli.options import Changes, option_problems, require_code
from highrank_plugins.common.names import option_name

if TYPE_CHECKING:
    from highrank_plugins.common.yaml_tree import Tree
    from highrank_plugins.training.configuration import Configuration
    from highrank_plugins.training.recipe_files import Launch


def configure(
    file: Annotated[Path, "A configuration, conf/NAME.yaml."],
    output: Annotated[Path, typer.Option(help="File for the resolved configuration.")],
    change: Changes = None,
    commands: Annotated[
        Path | None, "Folder for settings.sh and the command of each block, for recipes."
    ] = None,
    launch: Annotated[str, "Options of highrank launch, which override the block launch."] = "",
    corpus: Annotated[Path | None, "A recipe's corpus.yaml, which goes into settings.sh."] = None,
) -> None:
    """Resolve a configuration, and check every option.

    Example: highrank train configure recipes/ptb/conf/small/mos.yaml --output mos.yaml

    An unchanged configuration is not checked again.
    """
    from highrank_plugins.common.files import write_text
    from highrank_plugins.training import configuration
    from highrank_plugins.training.fairseq_options import check_options

    logging.disable(logging.INFO)  # hides fairseq's log
    tree = configuration.load_tree(file, change or [])
    settings = configuration.validate(tree)
    same = output.is_file() and output.read_text(encoding="utf-8") == settings.text()
    if not same:
        _check_user_dir(settings)
        check_own_options(settings, tree)
        check_options(settings, tree)
    if commands is not None:
        _write_commands(settings, commands, launch.split(), corpus)
    if not same:
        write_text(output, settings.text())


def _check_user_dir(settings: "Configuration") -> None:
    folder = settings.train.get("user_dir")
    if folder is None:
        return
    if not Path(str(folder)).is_dir():
        raise ValueError(
            f"train.user_dir: {folder!r} is not a folder in {Path.cwd()}, where relative "
            "paths of a recipe begin: write the absolute path"
        )
    require_code("train.user_dir", Path(str(folder)))


def _write_commands(
    settings: "Configuration", folder: Path, words: list[str], corpus: Path | None
) -> None:
    from highrank_plugins.data.corpus_files import check_languages, read_corpus
    from highrank_plugins.training.recipe_files import write_recipe_files

    more: dict[str, Any] = {"dry_run": "yes" if "--dry-run" in words else ""}
    if corpus is not None:
        files = read_corpus(corpus)
        train = settings.train
        if {"source_lang", "target_lang"} <= train.keys():
            check_languages(corpus, files, (train["source_lang"], train["target_lang"]))
        more |= {"archives": list(files.files), "gigabytes": str(files.gigabytes or 0)}
    saved = folder.parent / "train"
    launch = _launch(settings, words, saved) if words or settings.launch else None
    write_recipe_files(settings, folder, launch, more)


@contextmanager
def _blamed_on(words: list[str]) -> Iterator[None]:
    """Name the option --launch, if it has `words`, where `highrank launch` ends with an error.

    The error itself only names an option of `highrank launch`.
    """
    try:
        yield
    except Exception as error:  # typer has no public base class of a parser's errors
        if words and not (isinstance(error, typer.Exit) and error.exit_code == 0):
            typer.echo("--launch: highrank launch refuses these options.", err=True)
        raise


def _launch(settings: "Configuration", words: list[str], saved: Path) -> "Launch":
    """Rehearse the launch, and print its output if `words` have --dry-run."""
    from highrank_plugins.cli import launch as launching
    from highrank_plugins.training.command_line import user_dir, words_of
    from highrank_plugins.training.recipe_files import (
        Launch,
        launch_defaults,
        launched,
        unreplaced,
    )

    block = launch_defaults(settings)
    options = unreplaced(block, words)
    app = typer.Typer()
    app.command()(with_help(launching.launch))
    command: Any = typer.main.get_command(app)
    train = launched(settings.train)
    training = ["fairseq-train", "DATA", *user_dir(train), *words_of(train)]
    given = [*words_of(options), *words, "--dry-run", "--", *training, "--save-dir", str(saved)]
    with _blamed_on(words):
        context = command.make_context("highrank launch", given)
    with redirect_stdout(StringIO()) as said:
        try:
            with _blamed_on(words):
                command.invoke(context)
        except typer.Exit as end:
            if end.exit_code:
                raise
    if "--dry-run" in words:
        typer.echo(said.getvalue(), nl=False)
    found = context.params
    _, per_node = launching.devices(found["gpus_per_node"], found["processes"])
    by_hand = found["nodes"] > 1 and found["slurm"] is None
    # the number of processes is part of the batch, unless they share a fixed number of tokens or
    # streams: otherwise each further process makes the batch larger
    tokens = [settings.launch.get("effective_tokens")]
    if "effective_tokens" not in options:
        tokens.append(found["effective_tokens"])
    batch = [str(number) for number in tokens if number]
    if (streams := found["effective_streams"]) is not None:
        batch = [] if streams == settings.train.get("batch_size") else [f"streams {streams}"]
    elif not batch:
        batch = [f"processes {found['nodes'] * per_node}"]
    return Launch(options, words, batch, by_hand)


def space(
    config: Annotated[Path, "Configuration of `highrank train configure`."],
    block: Annotated[str, "Block of the configuration to train."],
    data: Annotated[str, "Directory with binarised data."],
    save_dir: Annotated[Path, "The run's --save-dir."],
) -> None:
    """Check that the disk has space for the checkpoints of a training run.

    Example: highrank train space config.yaml train data-bin train
    """
    from highrank_plugins.training.configuration import load
    from highrank_plugins.training.disk_space import check_space

    logging.disable(logging.INFO)  # hides fairseq's log
    check_space(load(config).options(block), data, save_dir)


def check_own_options(configuration: "Configuration", tree: "Tree") -> None:
    """Check names and values in the blocks of `highrank` subcommands."""
    from highrank_plugins.common.yaml_tree import ConfigurationError
    from highrank_plugins.training.command_line import PROGRAMS, program_of

    problems = [
        f"{tree.place((tool, name))}: {tool}.{name}: {problem}"
        for tool in (*PROGRAMS, *configuration.measures)
        if (program := program_of(tool).words).startswith("highrank ")
        for name, problem in option_problems(
            _command(program), program, configuration.options(tool)
        )
    ]
    if not problems:
        problems = [
            f"{tree.place((measure,))}: {measure}: {problem}"
            for measure in configuration.measures
            for problem in _measure_problems(measure, configuration.options(measure))
        ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def _command(program: str) -> Any:
    command: Any = typer.main.get_command(app)
    for name in program.split()[1:]:
        command = command.get_command(None, name)
    return command


def _measure_problems(measure: str, options: dict[str, Any]) -> Iterator[str]:
    """Yield what a measure's block lacks, or why the measure refuses the values in it."""
    from highrank_plugins.cli.analyse.measures import check_values
    from highrank_plugins.measures import find_measure
    from highrank_plugins.training.command_line import program_of

    for parameter in _command(program_of(measure).words).params:
        name = parameter.opts[0]
        if parameter.required and name.startswith("--") and option_name(name) not in options:
            yield f"{option_name(name)} is missing"
    try:
        check_values(find_measure(measure), options)
    except ValueError as error:
        yield str(error)


train = make_group({"configure": configure}, {"space": space})
