"""Checkpoints can be torn by a full disk or a kill.

What breaks: `checkpoint_best.pt` and `checkpoint_last.pt` are copied over the old file in place,
so an interrupted copy destroys both. After a failed write fairseq tries again into the same
half-written handle and returns as if all were well, with a file that cannot be loaded. A full disk
is reported as "unexpected pos 2021568 vs 2021456". `--write-checkpoints-asynchronously` writes over
the old file, and needs a package (iopath) that fairseq does not require.
Why: `PathManager.copy` is `shutil.copyfile`, `_torch_persistent_save` repeats `torch.save(obj, f)`.
What we do: write each attempt by `common/files.py`: into a new file, which is flushed, read back,
compared and renamed. The other names of a checkpoint are hard links, by which nothing is copied and
nothing overwritten. Asynchronous writes to local paths wait for the disk. Remote paths are left to
fairseq.
Delete when: fairseq does the same.
"""

import time
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.common.files import link_whole, write_whole
from highrank_plugins.common.patching import replaces

ATTEMPTS = 3
PAUSE_SECONDS = 2.5  # a network disk may be back by then


@replaces(checkpoint_utils, "torch_persistent_save")
def torch_persistent_save(stock, obj, filename, async_write=False) -> None:
    """Save to a local path, all or nothing, in three attempts."""
    if not PathManager.supports_rename(filename):
        return stock(obj, filename, async_write=async_write)
    expected_bytes = sum(_storages(obj).values())
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return write_whole(filename, lambda file: torch.save(obj, file), expected_bytes)
        except OSError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)


def _storages(value: Any) -> dict[int, int]:
    """Return the bytes of each storage below a value by its address; torch.save writes it once."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        storage = value.untyped_storage()
        return {storage.data_ptr(): storage.nbytes()}
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return {}
    found: dict[int, int] = {}
    for inner in value:
        found |= _storages(inner)
    return found


@replaces(PathManager, "copy")
def copy(stock, src_path, dst_path, overwrite=False):
    """Give a local file a second name; copy remote ones as fairseq does."""
    if not (PathManager.supports_rename(src_path) and PathManager.supports_rename(dst_path)):
        return stock(src_path, dst_path, overwrite=overwrite)
    link_whole(src_path, dst_path)
    return dst_path
