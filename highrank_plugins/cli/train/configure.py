"""`highrank train configure`, `setting`, `command`, `space`: from YAML to a command line."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from highrank_plugins.cli.user_error import user_errors

ResolvedFile = Annotated[Path, typer.Argument(help="Written by `highrank train configure`.")]


def configure(
    file: Annotated[Path, typer.Argument(help="A configuration, conf/NAME.yaml.")],
    output: Annotated[Path, typer.Option(help="Where to write it, resolved.")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value (of train) or block.key=value; may be repeated."),
    ] = None,
) -> None:
    """Resolve a configuration and check every option; nothing to do if unchanged."""
    from highrank_plugins.cli.train.own_options import check_own_options
    from highrank_plugins.common.files import write_text
    from highrank_plugins.training import configuration
    from highrank_plugins.training.fairseq_options import check_options

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        tree = configuration.load_tree(file, change or [])
        settings = configuration.validate(tree)
        if output.is_file() and output.read_text(encoding="utf-8") == settings.text():
            return
        check_own_options(settings, tree)
        check_options(settings, tree)
        write_text(output, settings.text())


def setting(
    file: ResolvedFile,
    key: Annotated[str, typer.Argument(help="A block or block.key.")],
) -> None:
    """Print a block, or one value, of a resolved configuration."""
    import yaml

    from highrank_plugins.training.configuration import load

    with user_errors():
        value: Any = load(file).blocks()
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                raise ValueError(f"{file}: there is no {key}")
            value = value[part]
    typer.echo(yaml.safe_dump(value).rstrip() if isinstance(value, dict) else value)


def command(
    tool: Annotated[str, typer.Argument(help="The block: train, finetune, generate, …")],
    file: ResolvedFile,
    extra: Annotated[
        list[str] | None, typer.Argument(help="Further words, after --: data and directories.")
    ] = None,
) -> None:
    """Print the command of a block, with its options, for a shell."""
    from highrank_plugins.common.suggest import did_you_mean
    from highrank_plugins.training.command_line import PROGRAMS, shell_line
    from highrank_plugins.training.configuration import load

    with user_errors():
        if tool not in PROGRAMS:
            raise ValueError(f"no tool {tool!r}{did_you_mean(tool, PROGRAMS)}")
        typer.echo(shell_line(tool, load(file).options(tool), extra or []))


def training_space(
    file: ResolvedFile,
    data: Annotated[Path, typer.Argument(help="Binarised data.")],
    block: Annotated[str, typer.Option(help="The block that is trained.")] = "train",
) -> None:
    """Print how many bytes the checkpoints of a training will take on the disk."""
    from highrank_plugins.training import disk_space
    from highrank_plugins.training.configuration import load

    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        typer.echo(disk_space.training_space(load(file).options(block), data))
