"""End a command silently once nobody reads its output, as in `… | head -1`."""

import os
import select
import sys
from collections.abc import Iterator
from typing import NoReturn


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
