"""Lock a folder that only one training run, launch or data command may write to at a time."""

import fcntl
import glob
import itertools
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from highrank_plugins.common.files import names_full_disk, open_own, try_lock
from highrank_plugins.common.folders import new_files, refuse_mixture
from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)


class _Use(NamedTuple):
    """Name the lock file of a folder, and what messages call the folder and its users."""

    lock: str
    folder: str
    user: str
    without_folder: str


_TRAINING = _Use("training.lock", "--save-dir", "training run", ", or add --no-save")
_OUTPUT = _Use(".highrank-lock", "folder", "data command", "")
_LOGS = _Use("launch.lock", "--log-dir", "highrank launch", "")


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[bool]:
    """Hold the lock of a training run's folder, and remove what a killed save has left there.

    The system releases the lock of a killed process. Child processes do not hold it. If the block
    ends with an error, the lock file and the folder are removed where they are new, the folder
    only if it is empty.

    Returns:
        Whether the folder is locked; False on a file system without locks, which is logged.
    """
    is_new = not os.path.exists(os.path.join(folder, _TRAINING.lock))
    with _held(Path(folder), _TRAINING) as is_locked:
        for left in glob.glob(os.path.join(glob.escape(str(folder)), "checkpoint*.pt.tmp")):
            if is_new:
                raise UserError(
                    f"{left} was not written by a training run of this folder, which would replace "
                    "it: move it away, or choose another --save-dir"
                )
            os.unlink(left)
        yield is_locked


@contextmanager
def output_folder(folder: Path, *inputs: Path) -> Iterator[None]:
    """Create the folder of a data command, and refuse other commands until the block ends.

    If the block fails, a folder that is new and empty is removed.

    Args:
        inputs: folders that the block reads.
    """
    for source in inputs:
        refuse_mixture(source)
        if source.resolve() == folder.resolve():
            raise ValueError(
                f"{folder} holds the input, which the output would overwrite: name another folder"
            )
    with _held(folder, _OUTPUT):
        try:
            yield
        finally:
            (folder / _OUTPUT.lock).unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path, *inputs: Path) -> Iterator[Path]:
    """Create the folder of a data command, and move its files there when all are complete.

    Yields:
        The folder to write the files to, see `new_files`.
    """
    with output_folder(folder, *inputs), new_files(folder) as new:
        yield new


@contextmanager
def log_folder(folder: Path, save_dir: Path, is_shared: bool) -> Iterator[None]:
    """Create the folder of a launch's logs, which belongs to one training run from then on.

    Args:
        save_dir: of the training run.
        is_shared: launchers of other nodes may hold the folder, too, for the same training run.
    """
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    with _held(folder, _LOGS, os.path.relpath(save_dir.resolve(), folder.resolve()), kind):
        yield


@contextmanager
def _held(folder: Path, use: _Use, owner: str = "", kind: int = fcntl.LOCK_EX) -> Iterator[bool]:
    new = _missing(folder, use)
    file, is_locked = _open_locked(folder, use, kind)
    is_whole = False
    with file:
        try:
            _, _, earlier = file.read().partition("\n")
            if owner and earlier not in ("", owner):
                raise UserError(
                    f"{use.folder} {folder} has the logs of another training run, whose --save-dir "
                    f"is {os.path.normpath(folder / earlier)}: choose another {use.folder}"
                )
            with names_full_disk(folder):
                file.truncate(0)
                holder = f"process {os.getpid()} on {socket.gethostname()}\n{owner}"
                os.write(file.fileno(), holder.encode())  # unbuffered: nothing is left for close()
            yield is_locked
            is_whole = True
        finally:
            if not is_whole:
                _remove(new)


def _missing(folder: Path, use: _Use) -> list[Path]:
    """Return what does not exist yet: the lock file, the folder, and the folders above it."""
    missing = itertools.takewhile(lambda path: not path.exists(), (folder, *folder.parents))
    lock = folder / use.lock
    return [] if lock.exists() else [lock, *missing]


def _remove(new: list[Path]) -> None:
    """Remove a new lock file, and the new folders if they are empty."""
    with suppress(OSError):  # another process has put files there
        for path in new:
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


def _open_locked(folder: Path, use: _Use, kind: int) -> tuple[IO[str], bool]:
    """Return the open lock file, at its start, and whether it is locked."""
    while True:
        file = _lock_file(folder, use)
        try:
            if not try_lock(file, kind | fcntl.LOCK_NB):
                holder = file.readline().strip() or "unknown process"
                file.close()
                raise UserError(
                    f"{use.folder} {folder} is in use by another {use.user} ({holder}): wait for "
                    f"it, stop it, or choose another {use.folder}"
                )
            if _has_its_name(file):
                return file, True
        except OSError as error:
            logger.warning(
                "%s: cannot be locked (%s); start only one %s in it", folder, error, use.user
            )
            return file, False
        file.close()


def _has_its_name(file: IO[str]) -> bool:
    """Whether no other process has removed the lock file since we opened it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    return False


def _lock_file(folder: Path, use: _Use) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_own(folder / use.lock, "a+")
    except OSError as error:
        raise UserError(
            f"{use.folder} {folder} cannot be written ({error.strerror}): choose another "
            f"{use.folder}{use.without_folder}"
        ) from error
    file.seek(0)
    return file
