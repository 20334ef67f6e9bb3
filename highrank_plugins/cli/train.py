"""Provide `highrank train configure|space`: check a configuration; and `match`, equal sizes."""

from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from highrank_plugins.cli import app, as_command, make_group
from highrank_plugins.cli.options import (
    Changes,
    names,
    option_problems,
    print_or_write,
    require_code,
)
from highrank_plugins.common.blocks import option
from highrank_plugins.common.names import option_name

if TYPE_CHECKING:
    from highrank_plugins.common.blocks import Tree
    from highrank_plugins.training.command_line import Launch
    from highrank_plugins.training.configuration import Configuration


def configure(
    file: Annotated[Path, "A configuration, conf/NAME.yaml."],
    output: Path = option(..., "File for the resolved configuration."),
    change: Changes = None,
    commands: Path | None = option(
        None, "Folder for settings.sh and the command of each block, for recipes."
    ),
    launch: str = option("", "Options of highrank launch, which override the block launch."),
    corpus: Path | None = option(None, "A recipe's corpus.yaml, which goes into settings.sh."),
) -> None:
    """Resolve a configuration, and check every option.

    Example: highrank train configure recipes/ptb/conf/small/mos.yaml --output mos.yaml

    An unchanged configuration is not checked again.
    """
    from highrank_plugins.common.files import write_text
    from highrank_plugins.training import configuration
    from highrank_plugins.training.fairseq_options import check_options

    tree = configuration.load_tree(file, change or [])
    settings = configuration.validate(tree)
    same = output.is_file() and output.read_text(encoding="utf-8") == settings.text()
    if not same:
        if (folder := settings.train.get("user_dir")) is not None:
            if not Path(str(folder)).is_dir():
                raise ValueError(
                    f"train.user_dir: {folder!r} is not a folder in {Path.cwd()}, where relative "
                    "paths of a recipe begin: write the absolute path"
                )
            require_code("train.user_dir", Path(str(folder)))
        check_measures(settings, tree)
        check_options(settings, tree)
    if commands is not None:
        _write_commands(settings, commands, launch.split(), corpus)
    if not same:
        write_text(output, settings.text())


def check_measures(configuration: "Configuration", tree: "Tree") -> None:
    """Check names and values in the blocks of measures, whose options are those of commands."""
    from highrank_plugins.common.blocks import ConfigurationError
    from highrank_plugins.training.blocks import program_of

    problems = []
    for measure in configuration.measures:
        program, options = program_of(measure), configuration.options(measure)
        command: Any = typer.main.get_command(app)
        for word in program.split()[1:]:
            command = command.get_command(None, word) if hasattr(command, "commands") else command
        problems += [
            f"{tree.place((measure, name))}: {measure}.{name}: {problem}"
            for name, problem in option_problems(command, program, options)
        ] or [
            f"{tree.place((measure,))}: {measure}: {problem}"
            for problem in _measure_problems(measure, command, options)
        ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def _measure_problems(measure: str, command: Any, options: dict[str, Any]) -> Iterator[str]:
    """Yield what a measure's block lacks, or why the measure refuses the values in it."""
    from highrank_plugins.cli.measure import check_block

    for parameter in command.params:
        name = parameter.opts[0]
        if parameter.required and name.startswith("--") and option_name(name) not in options:
            yield f"{option_name(name)} is missing"
    yield from check_block(measure, options)


def _write_commands(
    settings: "Configuration", folder: Path, words: list[str], corpus: Path | None
) -> None:
    from highrank_plugins.data.corpus_files import check_languages, read_corpus
    from highrank_plugins.training.command_line import write_recipe_files

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


def _launch(settings: "Configuration", words: list[str], saved: Path) -> "Launch":
    """Rehearse the launch, and print its output if `words` have --dry-run."""
    from highrank_plugins.cli.launch import devices, launch
    from highrank_plugins.training import command_line as lines
    from highrank_plugins.training.blocks import LaunchSettings

    command = as_command(launch)
    options = lines.launch_options(settings, words)
    train = lines.launched(settings.train)
    training = ["fairseq-train", "DATA", *lines.user_dir(train), *lines.words_of(train)]
    given = [*lines.words_of(options), *words, "--dry-run", "--", *training]
    with redirect_stdout(StringIO()) as said:
        try:
            context = command.make_context("highrank launch", [*given, "--save-dir", str(saved)])
            try:
                command.invoke(context)
            except typer.Exit as end:
                if end.exit_code:
                    raise
        except Exception:  # raised again: this only adds a line, whatever the error is
            if words:  # the error itself only names an option of `highrank launch`
                typer.echo("--launch: highrank launch refuses these options.", err=True)
            raise
    if "--dry-run" in words:
        typer.echo(said.getvalue(), nl=False)
    found = LaunchSettings(**{n: context.params[n] for n in LaunchSettings.model_fields})
    by_hand = found.nodes > 1 and found.slurm is None
    # the number of processes is part of the batch, unless they share a fixed number of tokens or
    # streams: otherwise each further process makes the batch larger
    tokens = [settings.launch.get("effective_tokens")]
    if "effective_tokens" not in options:
        tokens.append(found.effective_tokens)
    batch = [str(number) for number in tokens if number]
    if (streams := found.effective_streams) is not None:
        batch = [] if streams == settings.train.get("batch_size") else [f"streams {streams}"]
    elif not batch:
        batch = [f"processes {found.nodes * devices(found)[1]}"]
    return lines.Launch(options, words, batch, by_hand)


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
    from highrank_plugins.training.model_size import check_space

    check_space(load(config).options(block), data, save_dir)


train = make_group({}, {"configure": configure, "space": space})


def match(
    system: Annotated[str, "Configuration to change: a file, or a name in --recipe."],
    to: str = option(..., "Configuration to match."),
    by: Literal["parameters", "compute", "width"] = option(
        "parameters", "Quantity to make equal, within 0.5 %."
    ),
    recipe: str = option("ptb", "Recipe that has the configurations."),
    words: int | None = option(
        None, "Size of the dictionary (default: the configuration's).", ge=5
    ),
    data: Path | None = option(None, "Binarised text with the dictionary."),
    free: str | None = option(
        None, "Sizes to change in proportion, separated by commas (default: widths)."
    ),
    step: int = option(4, "Round sizes to multiples of this.", ge=1),
    output: Path | None = option(None, "Configuration to write (default, and -: print it)."),
) -> None:
    """Find the sizes at which a system costs as much as another.

    Example: highrank match small/mos --to small/softmax --by parameters
    """
    from highrank_plugins.studies.definition import recipe_folder
    from highrank_plugins.studies.members import (
        find_configuration,
        match_configurations,
        matched_yaml,
        shared_dictionary_size,
    )
    from highrank_plugins.training import configuration

    folder = recipe_folder(recipe, Path())
    base, target = (find_configuration(folder, name) for name in (system, to))
    settings, reference = configuration.load(base), configuration.load(target)
    count = words or (0 if data else shared_dictionary_size(folder.name, settings, reference))
    sizes = tuple(names("--free", free)) if free else ()
    found = match_configurations(
        settings, reference, by, words=count, data=data, free=sizes, step=step
    )
    place = Path() if output is None else output.parent  # of `-`, it is this directory, too
    text = matched_yaml(base, found, by, f"{system} of the size of {to}", place)
    print_or_write(text, output)
