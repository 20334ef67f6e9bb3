"""Checkpoints can be torn by a full disk or a kill.

What breaks: `checkpoint_best.pt` and `checkpoint_last.pt` are copied over the old file in place,
so an interrupted copy destroys both; after a failed write fairseq tries again into the same
half-written handle and returns as if all were well, with a file that cannot be loaded.
Why: `PathManager.copy` is `shutil.copyfile`, `_torch_persistent_save` repeats `torch.save(obj, f)`.
What we do: write beside the target, flush to the disk, then rename. Each attempt starts a new
file. Asynchronous writes and remote paths are left to fairseq.
Delete when: fairseq does the same.
"""

import os
import shutil
import time
from collections.abc import Callable
from typing import BinaryIO

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.common.patching import replaces

ATTEMPTS = 3
PAUSE_SECONDS = 2.5  # a network disk may be back by then


def write_atomically(path: str, write: Callable[[BinaryIO], object]) -> None:
    """Call `write(file)`; `path` holds all of it afterwards, or what it held before."""
    part = f"{path}.tmp"
    with open(part, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name too must survive a power failure
    finally:
        os.close(folder)


@replaces(checkpoint_utils, "torch_persistent_save")
def torch_persistent_save(stock, obj, filename, async_write=False) -> None:
    """Save by `torch.save` to a local path, all or nothing, in up to three attempts."""
    if async_write or not PathManager.supports_rename(filename):
        return stock(obj, filename, async_write=async_write)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return write_atomically(filename, lambda file: torch.save(obj, file))
        except (OSError, RuntimeError):
            if attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)


@replaces(PathManager, "copy")
def copy(stock, src_path, dst_path, overwrite=False):
    """Copy by `shutil.copyfile` between local paths, all or nothing."""
    if not (PathManager.supports_rename(src_path) and PathManager.supports_rename(dst_path)):
        return stock(src_path, dst_path, overwrite=overwrite)
    with open(src_path, "rb") as source:
        write_atomically(dst_path, lambda file: shutil.copyfileobj(source, file))
    return dst_path
