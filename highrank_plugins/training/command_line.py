"""Write blocks of a configuration as command lines that a person could paste, and for recipes."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import highrank_plugins
from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.common.files import CODE, files_digest, write_text
from highrank_plugins.common.names import flag
from highrank_plugins.common.user_error import UserError
from highrank_plugins.measures import find_measure, measure_names
from highrank_plugins.training.blocks import PROGRAMS, program_of
from highrank_plugins.training.configuration import Configuration

# steps that are skipped if their block is empty
_OPTIONAL = ("finetune", "launch")
STREAMS = "bptt_language_modeling"


def arguments(options: Mapping[str, object]) -> list[list[str]]:
    """Return the words of each option: `true` is a bare flag, `false` nothing, else a value."""
    return [
        [flag(name)] if value is True else [flag(name), str(value)]
        for name, value in options.items()
        if value is not False
    ]


def words_of(options: Mapping[str, object]) -> list[str]:
    """Return the words of all options in one list."""
    return [word for words in arguments(options) for word in words]


def user_dir(options: Mapping[str, object]) -> list[str]:
    """Return the flag that makes fairseq load this package, unless another one is given."""
    if "user_dir" in options:
        return []
    package = Path(highrank_plugins.__file__).parent
    here = Path.cwd()
    short = package.relative_to(here) if package.is_relative_to(here) else package
    return ["--user-dir", str(short)]


def shell_line(program: str, options: Mapping[str, object], extra: Sequence[str] = ()) -> str:
    """Return the line for a shell, an option per row, with a recipe's own words at the end."""
    own = arguments(options)
    if program.startswith("fairseq"):  # last: an option before it may take several values
        own = sorted([*own, user_dir(options)], key=lambda row: "--user-dir" in row)
    rows = [program.split(), *own, *by_option(extra)]
    return " \\\n    ".join(shlex.join(row) for row in rows if row)


def by_option(words: Sequence[str]) -> list[list[str]]:
    """Return every option with its values."""
    rows: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not rows:
            rows.append([])
        rows[-1].append(word)
    return rows


class Launch(NamedTuple):
    """Describe the start of a training run by `highrank launch`.

    `words` are the user's, and replace `options`. `batch` has lines about the size of an update
    that the options of the training run do not determine.
    """

    options: Mapping[str, Any]
    words: Sequence[str]
    batch: Sequence[str]
    by_hand: bool


def write_recipe_files(
    configuration: Configuration, folder: Path, launch: Launch | None, more: Mapping[str, Any]
) -> None:
    """Write `settings.sh`, to be sourced, and `BLOCK.sh` with the command of each block."""
    # what a training run depends on besides its data: options, processes, the user's own layers
    key = [yaml.safe_dump(configuration.train).rstrip(), *(launch.batch if launch else ())]
    if "user_dir" in configuration.train:
        key.append(files_digest(Path(str(configuration.train["user_dir"])), *CODE))
    variables = {
        "measures": configuration.measures,
        "text_measures": [name for name in configuration.measures if find_measure(name).of_a_split],
        "training_key": "\n".join(key),
        "other_nodes": "by hand" if launch and launch.by_hand else "",
        **more,
    }
    lines = ["# shellcheck shell=bash disable=SC2034", *_settings(configuration)]
    for name, value in variables.items():
        word = shlex.quote(value) if isinstance(value, str) else f"({shlex.join(value)})"
        lines.append(f"{name}={word}")
    settings = folder / "settings.sh"
    blocks = [folder / f"{block}.sh" for block in (*PROGRAMS, *measure_names())]
    earlier = [path for path in blocks if os.path.lexists(path)]
    if earlier and not settings.exists():
        names = ", ".join(path.name for path in earlier)
        raise UserError(
            f"--commands {folder}: {names} would be replaced, but this command has not written the "
            "folder (settings.sh is missing): name another folder"
        )
    write_text(settings, "\n".join(lines) + "\n")  # first: it marks the others as ours
    for path in earlier:
        path.unlink()
    for block in (*PROGRAMS, *configuration.measures):
        options = getattr(configuration, block)
        if options is not None and (options or block not in _OPTIONAL):
            own = configuration.options(block)
            if launch is not None and block in ("train", "finetune"):
                own = launched(own)
            write_text(folder / f"{block}.sh", shell_line(program_of(block), own))
    if launch is not None:
        line = shell_line("highrank launch", launch.options, launch.words)
        write_text(folder / "launch.sh", line)


def _settings(configuration: Configuration) -> Iterator[str]:
    """Yield the lines of an array: a block as YAML, or the value of block.option."""
    yield "declare -gA settings=("
    for block, options in configuration.blocks().items():
        yield f"    [{block}]={shlex.quote(yaml.safe_dump(options).rstrip())}"
        for name, value in options.items():
            yield f"    [{block}.{name}]={shlex.quote(str(value))}"
    yield ")"


def launched(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a training run's options for several processes: without the world size of one."""
    alone = ("distributed_world_size", 1)
    return {name: value for name, value in options.items() if (name, value) != alone}


def launch_options(configuration: Configuration, words: Sequence[str]) -> dict[str, Any]:
    """Return the block launch, without what the user's words replace.

    A run on streams keeps `train.batch_size` of them in all.
    """
    options, streams = configuration.launch, configuration.train.get("batch_size")
    if configuration.train.get("task") == STREAMS and streams is not None:
        if configuration.finetune.get("batch_size", streams) != streams:
            raise ConfigurationError(
                f"finetune.batch_size: a finetuning run under a launcher has the {streams} "
                "streams of train.batch_size; remove the option"
            )
        options = {"effective_streams": streams, **options}
    given = {word.partition("=")[0] for word in words}
    return {name: value for name, value in options.items() if flag(name) not in given}
