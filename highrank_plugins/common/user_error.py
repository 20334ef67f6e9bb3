"""Report what a user can correct in one line, and end silently once nobody reads the output."""

import os
import select
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from highrank_plugins.common.formatting import visible


class UserError(ValueError):
    """Report a request that cannot be fulfilled; the message says what to change.

    Commands print the message alone, without a traceback, and end with exit code 2.
    """


def explained(error: Exception) -> str:
    """Return `file: no such file or directory`, not Python's `[Errno 2] No such … : 'file'`.

    Names of files and parts of their text may be in it, so control characters are made visible.
    """
    if isinstance(error, OSError) and error.filename and error.strerror:
        return visible(f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}")
    return visible(str(error))


def place_in(folder: Path, error: BaseException) -> str:
    """Return `file:line: ` of the last line in a folder that led to an error, or nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if folder.resolve() in Path(frame.filename).parents]
    return "".join(f"{frame.filename}:{frame.lineno}: " for frame in own[-1:])


def has_no_reader() -> bool:
    """Whether standard output or standard error is a pipe whose reader has gone."""
    poll = select.poll()
    for descriptor in _descriptors():
        poll.register(descriptor, 0)  # POLLERR is always reported
    return any(event & select.POLLERR for _, event in poll.poll(0))


def leave(code: int) -> NoReturn:
    """Exit, and discard the buffers of standard output and standard error."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in _descriptors():
        os.dup2(nothing, descriptor)  # Python flushes it at exit, which would fail
    sys.exit(code)


def _descriptors() -> Iterator[int]:
    for stream in (sys.stdout, sys.stderr):
        try:
            yield stream.fileno()
        except (AttributeError, OSError, ValueError):  # closed, or not a file
            continue
