"""Short names that tell files apart."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Their names without ending, or with as many folders as they take to differ: `mos/results`.

    The ending stays where nothing else differs.

    Raises:
        ValueError: a file is given twice.
    """
    whole = [path.absolute() for path in paths]
    for path in paths:
        if whole.count(path.absolute()) > 1:
            raise ValueError(f"{path} is given twice")
    without_ending = [path.with_suffix("") for path in whole]
    if len(set(without_ending)) == len(whole):
        whole = without_ending
    return next(
        names
        for length in count(1)
        if len(set(names := ["/".join(path.parts[-length:]) for path in whole])) == len(whole)
    )
