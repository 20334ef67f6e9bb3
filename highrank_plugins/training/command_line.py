"""Options as the command line that a person could paste."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import highrank_plugins
from highrank_plugins.common.flags import flag
from highrank_plugins.common.yaml_tree import ConfigurationError

# block of a configuration → the command whose options it holds
PROGRAMS = {
    "data": "highrank data pieces",
    "clean": "highrank data clean-texts",
    "corpus": "highrank data lm-corpus",
    "dialogues": "highrank data dialogue-text",
    "launch": "highrank launch",
    "train": "fairseq-train",
    "finetune": "fairseq-train",
    "generate": "fairseq-generate",
    "evaluate": "fairseq-eval-lm",
    "dynamic_eval": "highrank evaluate dynamic",
    "cache_eval": "highrank evaluate cache",
    "spectrum": "highrank analyse spectrum",
    "kld": "highrank analyse kld",
    "predictions": "highrank analyse predictions",
    "retention": "highrank analyse retention",
}


def arguments(options: Mapping[str, object]) -> list[list[str]]:
    """Each option as its words: `true` is a bare flag, `false` nothing, else flag and value."""
    return [
        [flag(name)] if value is True else [flag(name), str(value)]
        for name, value in options.items()
        if value is not False
    ]


def words_of(options: Mapping[str, object]) -> list[str]:
    """The same in one list."""
    return [word for words in arguments(options) for word in words]


def user_dir(options: Mapping[str, object]) -> list[str]:
    """Return the flag that makes fairseq know this package; a short path where one leads there.

    Options with a `user_dir` of their own, which imports this package, need no other.
    """
    if "user_dir" in options:
        return []
    package = Path(highrank_plugins.__file__).parent
    here = Path.cwd()
    short = package.relative_to(here) if package.is_relative_to(here) else package
    return ["--user-dir", str(short)]


def shell_line(tool: str, options: Mapping[str, object], extra: Sequence[str]) -> str:
    """The line for a shell, an option per row.

    For `launch`, whose further words a user gives to a recipe, these win over the configuration's.

    Args:
        tool: a key of `PROGRAMS`.
        options: the configuration's block for it.
        extra: what the caller adds, such as the data directory and `--save-dir DIR`.
    Raises:
        ConfigurationError: an option of another tool is in the configuration and in `extra`.
    """
    given = {word.partition("=")[0] for word in extra}
    twice = [name for name in options if flag(name) in given]
    if twice and tool != "launch":
        raise ConfigurationError(f"{tool}.{twice[0]}: set by the recipe, remove it")
    options = {name: value for name, value in options.items() if name not in twice}
    program = PROGRAMS[tool]
    leading, *rest = by_option(extra)
    rows = [[*program.split(), *leading]]
    rows += [user_dir(options)] if program.startswith("fairseq") else []
    rows += arguments(options)
    return " \\\n    ".join(shlex.join(row) for row in [*rows, *rest])


def by_option(words: Sequence[str]) -> list[list[str]]:
    """The words before the first option, then every option with its values."""
    rows: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            rows.append([])
        rows[-1].append(word)
    return rows
