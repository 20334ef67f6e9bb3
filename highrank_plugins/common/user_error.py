"""Report in one line what a user can correct, also full disks; end if nobody reads the output."""

import errno
import os
import select
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from highrank_plugins.common.formatting import size, visible

_NO_SPACE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file exceeds the limit on file sizes (ulimit -f)",
}


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
    text = visible(str(error))
    if isinstance(error, FileExistsError) and os.path.exists(text):  # fairseq says no more
        return f"{text} exists: remove it, or give another folder"
    return text


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


def free_space(path: str | Path) -> tuple[int, Path]:
    """Return the bytes that are free for a file or folder, and the nearest folder that exists."""
    folder = Path(path)
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free, folder


@contextmanager
def names_full_disk(folder: Path) -> Iterator[None]:
    """Add to errors about a full disk the folder that the block writes to, and its free space."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE or error.strerror != os.strerror(error.errno):
            raise
        raise cannot_be_written(error, str(folder)) from None


def cannot_be_written(error: OSError, target: str) -> OSError:
    """Return the error in words that say what to do, with the name of the file."""
    reason = _NO_SPACE.get(error.errno or 0)
    if reason is None:
        return OSError(error.errno, f"it cannot be written ({error.strerror})", target)
    return OSError(
        error.errno,
        f"{reason}: {size(free_space(target)[0])} are free. Free some space and run the "
        "same command again; the previous contents are kept",
        target,
    )
