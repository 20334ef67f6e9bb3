"""Define the error that a user can correct."""

import traceback
from pathlib import Path

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
