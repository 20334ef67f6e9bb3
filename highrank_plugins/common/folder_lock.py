"""Hold a lock on a folder that one training at a time may write to."""

import fcntl
import glob
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from highrank_plugins.common.user_error import UserError

logger = logging.getLogger(__name__)


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[bool]:
    """Hold the lock of a training's folder, and remove what a killed save has left there.

    The system releases the lock of a killed process. Child processes do not hold it.

    Returns:
        Whether the folder is locked; False on a file system without locks, which is logged.
    Raises:
        UserError: Another process holds it; names the process. Or the folder cannot be written.
    """
    with _lock_file(folder) as file:
        is_locked = True
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise UserError(
                f"--save-dir {folder} is in use by another training "
                f"({file.read().strip() or 'unknown process'}): wait for its end or stop it, or "
                "choose another --save-dir"
            ) from None
        except OSError as error:
            is_locked = False
            logger.warning("%s: cannot be locked (%s); start one training only", folder, error)
        for left in glob.glob(os.path.join(glob.escape(str(folder)), "checkpoint*.pt.tmp")):
            os.unlink(left)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield is_locked


def _lock_file(folder: str | os.PathLike[str]) -> TextIO:
    try:
        os.makedirs(folder, exist_ok=True)
        return open(os.path.join(folder, "training.lock"), "a+", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--save-dir {folder} cannot be written ({error.strerror}): choose another --save-dir, "
            "or add --no-save"
        ) from error
