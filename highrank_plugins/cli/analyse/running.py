"""What the subcommands of `highrank analyse` do before and after the measure."""

import json
import logging
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from highrank_plugins.cli.user_error import user_errors

if TYPE_CHECKING:
    from highrank_plugins.collect.processes import Processes


@contextmanager
def measuring(plot: Path | None) -> Iterator[None]:
    """Quiet, with errors as messages; a plot that cannot be drawn is refused first."""
    logging.disable(logging.INFO)  # fairseq's
    with user_errors():
        from highrank_plugins.experiments.plots import check_plot

        check_plot(plot)
        yield


@contextmanager
def along_a_text(plot: Path | None) -> Iterator["Processes"]:
    """The same, with the processes of torchrun."""
    with measuring(plot):
        from highrank_plugins.collect.processes import started

        with started() as processes:
            yield processes


def report(
    result: Any, output: Path | None, hidden: Sequence[str] = (), **more: object
) -> dict[str, Any]:
    """Print the result, and write the JSON file, with how it came about.

    Args:
        result: dataclass, named tuple, or dictionary.
        hidden: what is too long to be printed.
        more: values that come first in both.
    Returns:
        the result as plain values.
    """
    from highrank_plugins.experiments.record import git_state, hardware, versions, write_json

    found = plain(more) | plain(result)
    shown = {name: value for name, value in found.items() if name not in hidden}
    typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    if output is not None:
        command = shlex.join(["highrank", *sys.argv[1:]])
        made = {"command": command, "versions": versions(), "git": git_state()}
        write_json(output, found | made | {"hardware": hardware()})
    return found


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dictionaries; a number that is not finite is None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in (f.name for f in fields(value))}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(own) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(own) for own in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
