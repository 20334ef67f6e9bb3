"""Find short names that tell files apart."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path


def distinct_names(paths: Sequence[Path], nameless: str | None = None) -> list[str]:
    """Return names without ending, with as many folders as they take to differ: `ptb/mos`.

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
