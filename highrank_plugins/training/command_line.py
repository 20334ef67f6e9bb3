"""Write blocks of a configuration as command lines that a person could paste."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import highrank_plugins
from highrank_plugins.common.names import flag
from highrank_plugins.measures import find_measure, measure_names


class Program(NamedTuple):
    """Name the command whose options a block of a configuration holds.

    Attributes:
        words: its name.
        set_by_recipes: options that a recipe adds and a configuration may not have.
    """

    words: str
    set_by_recipes: tuple[str, ...] = ()


_TRAINING = ("save_dir", "tensorboard_logdir", "log_format")
# block of a configuration → its command; measures have blocks of their names
PROGRAMS = {
    "data": Program("highrank data pieces", ("languages",)),
    "clean": Program("highrank data clean-texts", ("languages",)),
    "corpus": Program("highrank data lm-corpus", ("data", "output")),
    "dialogues": Program("highrank data dialogue-text"),
    "launch": Program("highrank launch"),
    "train": Program("fairseq-train", _TRAINING),
    "finetune": Program("fairseq-train", (*_TRAINING, "finetune_from_model")),
    "generate": Program("fairseq-generate", ("gen_subset", "path", "score_reference")),
    "evaluate": Program("fairseq-eval-lm", ("gen_subset", "path")),
}


_MEASURING = ("split", "output")


def program_of(block: str) -> Program:
    """Return the command of a key of `PROGRAMS` or of a measure; the latter imports torch."""
    if block in PROGRAMS:
        return PROGRAMS[block]
    return Program(find_measure(block).command(block), _MEASURING)


def set_by_recipes(block: str) -> tuple[str, ...]:
    """Return the options that the block of a command or measure may not have."""
    if block in PROGRAMS:
        return PROGRAMS[block].set_by_recipes
    return _MEASURING if block in measure_names() else ()


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
    """Return the flag that makes fairseq load this package, with a short path where possible.

    Options with a `user_dir` of their own need none, since that package imports this one.
    """
    if "user_dir" in options:
        return []
    package = Path(highrank_plugins.__file__).parent
    here = Path.cwd()
    short = package.relative_to(here) if package.is_relative_to(here) else package
    return ["--user-dir", str(short)]


def shell_line(program: Program, options: Mapping[str, object], extra: Sequence[str] = ()) -> str:
    """Return the line for a shell, an option per row.

    A recipe adds its own words at the end, such as the data directory and `--save-dir DIR`.

    Args:
        options: the configuration's block.
        extra: further words of the user.
    """
    own = arguments(options)
    if program.words.startswith("fairseq"):  # last: an option before it may take several values
        own = sorted([*own, user_dir(options)], key=lambda row: "--user-dir" in row)
    rows = [program.words.split(), *own, *by_option(extra)]
    return " \\\n    ".join(shlex.join(row) for row in rows if row)


def by_option(words: Sequence[str]) -> list[list[str]]:
    """Return every option with its values."""
    rows: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not rows:
            rows.append([])
        rows[-1].append(word)
    return rows
