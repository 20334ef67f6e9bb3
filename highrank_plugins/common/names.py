"""Format names of options and files, and suggest the name that a mistyped one means."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import count
from pathlib import Path


def flag(name: str) -> str:
    """Return `--max-tokens` for `max_tokens`."""
    return f"--{name.replace('_', '-')}"


def option_name(given: str) -> str:
    """Return `max_tokens` for `--max-tokens`."""
    return given.removeprefix("--").replace("-", "_")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'lr'?"`, or nothing if no known name is near."""
    matches = get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def distinct_names(paths: Sequence[Path], nameless: str | None = None) -> list[str]:
    """Return names without ending, with enough folders to differ: `ptb/mos`.

    The ending stays where nothing else differs.

    Args:
        nameless: a file of this name is called like its folder.
    Raises:
        ValueError: a file is given twice.
    """
    whole = [path.absolute() for path in paths]
    for path in paths:
        if whole.count(path.absolute()) > 1:
            raise ValueError(f"{path} is given twice")
    named = [path.parent if path.name == nameless else path.with_suffix("") for path in whole]
    if len(set(named)) < len(whole):
        named = [path.parent if path.name == nameless else path for path in whole]
    return next(
        names
        for length in count(1)
        if len(set(names := ["/".join(path.parts[-length:]) for path in named])) == len(named)
    )
