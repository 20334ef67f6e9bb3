"""Write folders completely or not at all, and lock what one process at a time may write to."""

import errno
import fcntl
import glob
import itertools
import logging
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from highrank_plugins.common.files import flush, open_own, require_regular
from highrank_plugins.common.user_error import UserError, names_full_disk

logger = logging.getLogger(__name__)
_STAMP = ".highrank-incomplete"  # the lock file of a folder that is being written
_NEW = ".highrank-new"


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Write a new folder as NAME.part; flush and rename it when it is complete, or remove it.

    If it is there with hidden files alone, as that of a recipe's stage, it is filled instead.
    """
    is_there = folder.is_dir()
    if any(folder.glob("[!.]*")) if is_there else os.path.lexists(folder):
        raise UserError(f"{folder} exists already: name another folder, or move it away")
    part = folder / _NEW if is_there else folder.with_name(f"{folder.name}.part")
    if os.path.lexists(part) and (part.is_symlink() or not (part / _STAMP).is_file()):
        raise FileExistsError(
            errno.EEXIST,
            "it is in the way, and was not written by this command: move it away, or name another "
            "folder",
            str(part),
        )
    with held(part / _STAMP, f"folder {folder}", "command"):
        try:
            for left in part.iterdir():  # by a killed process
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                elif left.name != _STAMP:
                    left.unlink()
            with names_full_disk(folder.parent):
                yield part
                for path in (part, *part.rglob("*")):
                    if not path.is_symlink():
                        flush(path)
                (part / _STAMP).unlink()
                for path in part.iterdir() if is_there else ():
                    os.replace(path, folder / path.name)
                if not is_there:
                    os.replace(part, folder)
                flush(part.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _try_lock(file: IO[Any], kind: int) -> bool:
    """Lock a file, open to write, until it is closed; False if another process holds it."""
    with suppress(PermissionError):  # another user's, whose group may work here
        # who may read it could share a lock, so strangers may not even read it
        os.fchmod(file.fileno(), os.fstat(file.fileno()).st_mode & 0o770)
    try:
        # ends with its process, and children do not inherit it; only who may write can lock
        fcntl.lockf(file, kind)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[bool]:
    """Hold the lock of a training run's folder; yield False on a disk without locks.

    Remove what a killed save has left there.
    """
    for checkpoint in Path(folder).glob("checkpoint*.pt"):  # in whose place ours would come
        if not checkpoint.is_dir():  # a folder is in no save's way
            require_regular(checkpoint)
    lock = Path(folder) / "training.lock"
    is_new = not lock.exists()
    with held(lock, f"--save-dir {folder}", "training run") as is_locked:
        for left in glob.glob(os.path.join(glob.escape(str(folder)), "checkpoint*.pt.tmp")):
            if is_new:
                raise UserError(
                    f"{left} was not written by a training run of this folder, which would replace "
                    "it: move it away, or choose another --save-dir"
                )
            os.unlink(left)
        yield is_locked


@contextmanager
def log_folder(folder: Path, save_dir: Path, is_shared: bool) -> Iterator[None]:
    """Create the folder of the logs of one training run; launchers of its nodes may share it."""
    owner = os.path.relpath(save_dir.resolve(), folder.resolve())
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    with held(folder / "launch.lock", f"--log-dir {folder}", "highrank launch", owner, kind):
        yield


@contextmanager
def held(
    lock: Path,
    what: str,
    user: str,
    owner: str = "",
    kind: int = fcntl.LOCK_EX,
    waits: bool = False,
) -> Iterator[bool]:
    """Hold a lock file, in a new folder if need be; yield False on a disk without locks.

    `what` is held, an option with its folder, and `user` holds it: so messages name them. If the
    block ends with an error, what is new and empty is removed.
    """
    above = itertools.takewhile(lambda path: not path.exists(), lock.parents)
    new = [] if lock.exists() else [lock, *above]
    file, is_locked = _open_locked(lock, what, user, kind, waits)
    with file:
        try:
            # launchers of two nodes may empty and fill it at once: each entry is two whole lines
            earlier = "".join(file.read().splitlines()[1:2])
            if owner and earlier not in ("", owner):
                raise UserError(
                    f"{what} has the logs of another training run, whose --save-dir is "
                    f"{os.path.normpath(lock.parent / earlier)}: choose another"
                )
            with names_full_disk(lock.parent):
                file.truncate(0)
                holder = f"process {os.getpid()} on {socket.gethostname()}\n{owner}\n"
                os.write(file.fileno(), holder.encode())  # unbuffered: nothing is left for close()
            yield is_locked
        except BaseException:
            with suppress(OSError):  # another process has put files there
                for path in new:
                    path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            raise


def _open_locked(lock: Path, what: str, user: str, kind: int, waits: bool) -> tuple[IO[str], bool]:
    """Return the open lock file, at its start, and whether it is locked."""
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = open_own(lock, "a+")
        except OSError as error:
            raise UserError(
                f"{what} cannot be written ({error.strerror}): choose another"
            ) from error
        file.seek(0)
        try:
            if not _try_lock(file, kind | fcntl.LOCK_NB):
                holder = file.readline().strip() or "unknown process"
                if not waits:
                    file.close()
                    raise UserError(
                        f"{what} is in use by another {user} ({holder}): wait for it, stop it, or "
                        "choose another"
                    )
                print(f"{what}: waiting for another {user} ({holder})", file=sys.stderr)
                _try_lock(file, kind)
                file.seek(0)
            with suppress(FileNotFoundError):  # another process may have removed it meanwhile
                if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                    return file, True
        except OSError as error:
            logger.warning("%s: cannot be locked (%s); start only one %s in it", what, error, user)
            return file, False
        file.close()
