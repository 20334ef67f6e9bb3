"""Progress bars with the time left: drawn in place on a terminal, a line now and then in a log."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any


class _Lines:
    """What tqdm writes on, where a bar cannot be redrawn: each state of it becomes a line."""

    def write(self, text: str) -> None:
        state = text.strip()
        if state:
            sys.stderr.write(f"{state}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def bar_options() -> dict[str, Any]:
    """Arguments of `tqdm` for what may run longer than ten seconds."""
    if sys.stderr.isatty():
        return {"file": sys.stderr}
    return {"file": _Lines(), "mininterval": 10, "ascii": True, "ncols": 78}


def bar(items: Sequence[Any], name: str) -> Iterable[Any]:
    """The items, with a bar for them."""
    from tqdm import tqdm

    return tqdm(items, name, **bar_options())
