"""Hold a lock on a folder that one training run at a time may write to."""

import fcntl
import glob
import itertools
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from highrank_plugins.common.files import open_own
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)

_LOCK = "training.lock"


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[bool]:
    """Hold the lock of a training run's folder, and remove what a killed save has left there.

    The system releases the lock of a killed process. Child processes do not hold it. If the block
    ends with an error, the lock file and the folder are removed where they are new, the folder
    only if it is empty.

    Returns:
        Whether the folder is locked; False on a file system without locks, which is logged.
    Raises:
        UserError: Another process holds it; names the process. Or the folder cannot be written, or
            a link has the name of the lock file.
    """
    new = _missing(Path(folder))
    file, is_locked = _open_locked(folder)
    with file:
        for left in glob.glob(os.path.join(glob.escape(str(folder)), "checkpoint*.pt.tmp")):
            os.unlink(left)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        is_whole = False
        try:
            yield is_locked
            is_whole = True
        finally:
            if not is_whole:
                _remove(new)


def _missing(folder: Path) -> list[Path]:
    """Return what does not exist yet: the lock file, the folder, and the folders above it."""
    missing = itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents))
    return [] if (folder / _LOCK).exists() else [folder / _LOCK, *missing]


def _remove(new: list[Path]) -> None:
    """Remove a new lock file, and the new folders if they are empty."""
    with suppress(OSError):  # another process has put files there
        for path in new:
            path.unlink() if path.name == _LOCK else path.rmdir()


def _open_locked(folder: str | os.PathLike[str]) -> tuple[IO[str], bool]:
    """Return the open lock file, and whether it is locked."""
    while True:
        file = _lock_file(folder)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _has_its_name(file):
                return file, True
        except (BlockingIOError, PermissionError):
            file.seek(0)
            holder = file.read().strip() or "unknown process"
            file.close()
            raise UserError(
                f"--save-dir {folder} is in use by another training run ({holder}): wait for "
                "it, stop it, or choose another --save-dir"
            ) from None
        except OSError as error:
            logger.warning(
                "%s: cannot be locked (%s); start only one training run in it", folder, error
            )
            return file, False
        file.close()


def _has_its_name(file: IO[str]) -> bool:
    """Whether no other process has removed the lock file since we opened it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    return False


def _lock_file(folder: str | os.PathLike[str]) -> IO[str]:
    try:
        os.makedirs(folder, exist_ok=True)
        return open_own(os.path.join(folder, _LOCK), "a+")
    except OSError as error:
        raise UserError(
            f"--save-dir {folder} cannot be written ({error.strerror}): choose another --save-dir, "
            "or add --no-save"
        ) from error
