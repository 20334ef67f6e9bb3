"""Provide `highrank train configure`, `match` and `launch`: from a configuration to runs."""

import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from highrank_plugins.cli import app, as_command, make_group
from highrank_plugins.cli.options import (
    Changes,
    names,
    option_problems,
    print_or_write,
    require_code,
)
from highrank_plugins.common.blocks import ConfigurationError, Tree, option
from highrank_plugins.common.files import write_text
from highrank_plugins.common.folders import held
from highrank_plugins.data.corpus_files import check_languages, read_corpus
from highrank_plugins.studies import members
from highrank_plugins.studies.definition import recipe_folder
from highrank_plugins.training import command_line as lines
from highrank_plugins.training import configuration
from highrank_plugins.training.blocks import LaunchSettings, program_of
from highrank_plugins.training.launch import batch_job, plan, supervise
from highrank_plugins.training.launch.torchrun import describe
from highrank_plugins.training.model_size import check_command, check_options, solve


def configure(
    file: Annotated[Path, "A configuration, conf/NAME.yaml."],
    output: Path = option(..., "File for the resolved configuration."),
    change: Changes = None,
    commands: Path | None = option(None, "Folder for settings.sh and the command of each block."),
    launch: str = option("", "Options of highrank launch, which override the block launch."),
    corpus: Path | None = option(None, "A recipe's corpus.yaml, which goes into settings.sh."),
) -> None:
    """Resolve a configuration, and check every option.

    Example: highrank train configure recipes/ptb/conf/small/mos.yaml --output mos.yaml

    An unchanged configuration is not checked again.
    """
    tree = configuration.load_tree(file, change or [])
    keep_read(output, tree)
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
        _write_commands(settings, commands, _words(launch), corpus)
    if not same:
        write_text(output, settings.text())


def keep_read(output: Path | None, *trees: Tree) -> None:
    """Refuse to replace a file from which a configuration, or one that it inherits, was read."""
    files = {place.rpartition(":")[0] for tree in trees for place in tree.places.values()}
    if output is not None and output.resolve() in {Path(file).resolve() for file in files}:
        raise ValueError(
            f"--output {output}: a configuration is read from this file; name another file"
        )


def check_measures(settings: configuration.Configuration, tree: Tree) -> None:
    """Check the blocks of measures, whose options are those of commands."""
    problems = []
    if settings.measures:
        from highrank_plugins.cli.measure import check_block  # it imports torch
    for measure in settings.measures:
        options = settings.options(measure)
        command: Any = typer.main.get_command(app)
        for word in program_of(measure).split()[1:]:
            command = command.get_command(None, word) if hasattr(command, "commands") else command
        found = [*option_problems(command, options)]
        problems += [
            f"{tree.place((measure, name))}: {measure}{name and '.'}{name}: {problem}"
            for name, problem in found or [("", why) for why in check_block(measure, options)]
        ]
    if problems:
        raise ConfigurationError("\n".join(problems))


def _write_commands(
    settings: configuration.Configuration, folder: Path, words: list[str], corpus: Path | None
) -> None:
    more: dict[str, Any] = {"dry_run": "yes" if "--dry-run" in words else ""}
    if corpus is not None:
        files = read_corpus(corpus)
        train = settings.train
        if {"source_lang", "target_lang"} <= train.keys():
            check_languages(corpus, files, (train["source_lang"], train["target_lang"]))
        more |= {"archives": list(files.files), "gigabytes": str(files.gigabytes or 0)}
    saved = folder.parent / "train"
    launch = _launch(settings, words, saved) if words or settings.launch else None
    lines.write_recipe_files(settings, folder, launch, more)


def _words(launch: str) -> list[str]:
    """Return the words of --launch, as a shell would split them."""
    try:
        return shlex.split(launch)
    except ValueError as error:
        raise ValueError(f"--launch {launch}: {error}") from None


def _launch(settings: configuration.Configuration, words: list[str], saved: Path) -> lines.Launch:
    """Rehearse the launch, and print its output if `words` have --dry-run."""
    options = lines.launch_options(settings, words)
    train = lines.launched(settings.train)
    given = ["--dry-run", *lines.words_of(options), *words, "--", "fairseq-train", "DATA"]
    given += [*lines.user_dir(train), *lines.words_of(train), "--save-dir", str(saved)]
    with redirect_stdout(StringIO()) as said:
        try:
            if {"--", "--help"} & {*words}:
                raise ValueError("give options alone; the recipe adds the command")
            context = as_command(launch).make_context("highrank launch", given)
            found = LaunchSettings(**{n: context.params[n] for n in LaunchSettings.model_fields})
            if found.log_dir is not None:
                raise ValueError(f"--log-dir: the recipe has logs in {saved}/logs; leave it out")
            launch(context.params["command"], found)
        except Exception:  # raised again: this only adds a line, whatever the error is
            if words:  # the error itself only names an option of `highrank launch`
                typer.echo("--launch: highrank launch refuses these options.", err=True)
            raise
    if "--dry-run" in words:
        typer.echo(said.getvalue(), nl=False)
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


train = make_group({}, {"configure": configure})


def match(
    system: Annotated[str, "Configuration to change: a file, or a name in --recipe."],
    to: str = option(..., "Configuration to match."),
    by: Literal["parameters", "compute", "width"] = option("parameters", "Equal within 0.5 %."),
    recipe: str = option("ptb", "Recipe that has the configurations."),
    words: int | None = option(None, "Dictionary's size (default: the configuration's).", ge=5),
    free: str | None = option(None, "Sizes to change, separated by commas (default: widths)."),
    step: int = option(4, "Round sizes to multiples of this.", ge=1),
    output: Path | None = option(None, "Configuration to write (default, and -: print it)."),
) -> None:
    """Find the sizes at which a system costs as much as another.

    Example: highrank match small/mos --to small/softmax --by parameters
    """
    folder = recipe_folder(recipe, Path())
    base, target = (
        Path(name) if name.endswith(".yaml") else members.find_configuration(folder, name)
        for name in (system, to)
    )
    trees = configuration.load_tree(base, []), configuration.load_tree(target, [])
    keep_read(output, *trees)
    settings, reference = map(configuration.validate, trees)
    known = words or members.shared_dictionary_size(folder.name, settings, reference)
    models = settings.options("train"), reference.options("train")
    found = solve(*models, by, known, names("--free", free) if free else (), step)
    place = Path() if output is None else output.parent  # of `-`, it is this directory, too
    text = members.matched_yaml(base, found, by, f"{system} of the size of {to}", place)
    print_or_write(text, output)


def launch(
    command: Annotated[list[str], "After --: fairseq-train and its options."],
    settings: LaunchSettings,
) -> None:
    """Train on several processes, GPUs or nodes.

    Example: highrank launch --gpus-per-node 8 -- fairseq-train data-bin

    SIGTERM or SIGUSR1 saves a checkpoint and ends with exit code 75; the same command resumes from
    it. Run the same command on every node. See docs/howto/clusters.md.
    """
    if settings.slurm is not None:
        _check_slurm(settings)
    elif not settings.dry_run:
        plan.refuse_missing(command)
    nodes, restarts = settings.nodes, settings.max_restarts
    gpus, per_node = devices(settings)
    log_dir = settings.log_dir or plan.save_dir(command) / "logs"
    made = plan.Plan(
        _complete(command, settings, nodes * per_node), log_dir, nodes, per_node, gpus,
        settings.rendezvous, settings.rendezvous_timeout,
        (3 if nodes > 1 else 0) if restarts is None else restarts, settings.stall_timeout,
    )  # fmt: skip
    if settings.dry_run:
        check_command(command)
    if settings.slurm is not None:
        _slurm(made, settings, settings.slurm)
    elif settings.submit or settings.prologue or batch_job.directives_of(settings):
        raise ValueError(
            "--submit, --sbatch, --account, --qos, --mem and --prologue need --slurm FILE"
        )
    elif settings.dry_run:
        typer.echo(describe(made))
    else:
        raise typer.Exit(supervise.launch(made, _say))


def _say(line: str) -> None:
    typer.echo(f"highrank: {line}", err=True)


def _check_slurm(settings: LaunchSettings) -> None:
    """Check the options of a SLURM job: require what is unknown here, refuse what SLURM decides."""
    if settings.gpus_per_node is None and settings.processes is None:
        raise ValueError(
            "--slurm needs the size of a node: --gpus-per-node N (or --processes N on CPUs)"
        )
    if settings.rendezvous is not None:
        raise ValueError("--rendezvous: SLURM tells its processes where to meet; remove it")
    if settings.max_restarts is not None:
        raise ValueError("--max-restarts: a SLURM job ends when it loses a process; remove it")


def devices(settings: LaunchSettings) -> tuple[bool, int]:
    """Return whether to train on GPUs, and the number of processes per machine."""
    if settings.gpus_per_node is not None and settings.processes is not None:
        raise ValueError("--gpus-per-node and --processes (on a CPU) exclude each other")
    if settings.processes is not None:
        return False, settings.processes
    if settings.gpus_per_node is not None:
        return True, settings.gpus_per_node
    import torch

    count = torch.cuda.device_count()
    return (True, count) if count else (False, 1)


def _complete(command: list[str], settings: LaunchSettings, world_size: int) -> tuple[str, ...]:
    tokens, streams = settings.effective_tokens, settings.effective_streams
    if tokens is not None and streams is not None:
        raise ValueError("--effective-tokens and --effective-streams exclude each other")
    if tokens is not None:
        command, line = plan.with_effective_batch(command, tokens, world_size)
    elif streams is not None:
        command, line = plan.with_effective_streams(command, streams, world_size)
    else:
        return tuple(command)
    _say(line)
    return tuple(command)


def _slurm(made: plan.Plan, settings: LaunchSettings, script: Path) -> None:
    given = batch_job.directives_of(settings)
    batch_job.check_characters([str(script), *given, *made.command])
    text = batch_job.sbatch_script(made, settings)
    if settings.dry_run:
        typer.echo(text, nl=False)
    elif settings.submit:
        with held(made.log_dir / ".submit", f"--log-dir {made.log_dir}", "highrank launch"):
            typer.echo(batch_job.submit_once(made, settings, script, text))
    else:
        made.log_dir.mkdir(parents=True, exist_ok=True)  # SLURM does not create it
        write_text(script, text)
        typer.echo(f"sbatch {script}")
