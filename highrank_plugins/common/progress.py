"""Show progress with the time left: in place on a terminal, as occasional lines in a log."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

# (items, name) → the same items, shown as they are taken; for example `bar`
Progress: TypeAlias = Callable[[Sequence[Any], str], Iterable[Any]]


class _Lines:
    """Write each state of tqdm's bar as a line, where a bar cannot be redrawn."""

    def write(self, text: str) -> None:
        state = text.strip()
        if state:
            sys.stderr.write(f"{state}\n")

    def flush(self) -> None:
        sys.stderr.flush()


def bar_options() -> dict[str, Any]:
    """Return arguments of `tqdm` for what may run longer than five seconds."""
    if sys.stderr.isatty():
        return {"file": sys.stderr, "delay": 5}
    return {"file": _Lines(), "delay": 5, "mininterval": 10, "ascii": True, "ncols": 78}


def bar(items: Sequence[Any], name: str) -> Iterable[Any]:
    """Return the items, with a bar for them."""
    from tqdm import tqdm

    return tqdm(items, name, **bar_options())


def silent(items: Sequence[Any], _name: str) -> Sequence[Any]:
    """Return the items and show nothing."""
    return items
