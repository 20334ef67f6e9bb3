"""Write files completely or not at all, and turn results into plain values for JSON."""

import errno
import json
import math
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any

from highrank_plugins.common.formatting import size
from highrank_plugins.common.user_error import UserError

_BLOCK = 8 << 20
MOST_JSON = 64 << 20  # bytes of a JSON file; none of ours has a tenth of it
KEPT = "; the previous contents are kept"
_NO_SPACE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file exceeds the limit on file sizes (ulimit -f)",
}
# errors where a file system has no hard links, or none between these two places
_NO_LINKS = {
    errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK,
}  # fmt: skip


def open_own(path: str | Path, mode: str, buffering: int = -1) -> IO[Any]:
    """Open a file of ours to write, in a folder that others may write to, too; text is UTF-8."""

    def opened(path: str, flags: int) -> int:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        if stat.S_IFMT(os.fstat(handle).st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            return handle
        os.close(handle)
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))

    try:
        encoding = None if "b" in mode else "utf-8"
        return open(path, mode, buffering, encoding, opener=opened)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
    raise UserError(
        f"{path} is a symbolic link, a pipe or a device in place of one of our files: remove it; "
        "nothing was written to its target"
    )


def require_regular(path: str | Path) -> None:
    """Refuse pipes and devices, which a reader would wait for or read without end."""
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "a pipe or a device"
        raise UserError(f"{path} is {kind}; a file is needed here")


def write_json(path: Path, value: object) -> None:
    """Write a value as JSON, see `write_whole`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    require_regular(path)
    if (bytes_ := path.stat().st_size) > MOST_JSON:
        raise ValueError(f"{path}: {size(bytes_)}, and ours have {size(MOST_JSON)} at most")
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path}: not JSON ({error}); write the file again") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, see `write_whole`; into a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    write_whole(path, lambda file: file.write(content), len(content))


def write_whole(path: str | Path, write: Callable[[Any], object], expected_bytes: int = 0) -> None:
    """Call `write(file)`; `path` holds all of it afterwards, or what it held before.

    Devices and pipes, such as /dev/null, are written directly. Nothing is written where the
    `expected_bytes` do not fit.
    """
    target = os.path.abspath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "wb") as device:
            write(device)
        return
    part = f"{target}.tmp"
    try:
        if expected_bytes > free_space(target)[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if os.path.islink(part):
            os.unlink(part)  # it leads elsewhere
        with open_own(part, "wb") as file:
            checksum = _write_to_disk(file, write)
        with open(part, "rb", buffering=0) as file:
            found = 0
            while block := file.read(_BLOCK):
                found = zlib.crc32(block, found)
        if found != checksum:
            raise OSError(errno.EIO, "the disk does not hold the written data")
        os.replace(part, target)
    except OSError as error:
        raise _explained(error, target, expected_bytes) from None
    finally:
        with suppress(OSError):
            os.unlink(part)  # a .part file is always incomplete
    flush(os.path.dirname(target))


def link_whole(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, replacing any file of that name.

    On file systems without hard links, the file is copied.
    """
    source, target = os.path.realpath(source), os.path.abspath(target)
    if os.path.lexists(target) and os.path.samestat(os.stat(source), os.lstat(target)):
        return  # renaming one name of a file to another of its names would do nothing
    part = f"{target}.tmp"
    try:
        with suppress(FileNotFoundError):
            os.unlink(part)  # left behind by a killed process
        os.link(source, part)
        os.replace(part, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise _explained(error, target) from None
        with open(source, "rb") as file:
            size = os.path.getsize(source)
            write_whole(target, lambda copy: shutil.copyfileobj(file, copy, _BLOCK), size)
        return
    finally:
        with suppress(OSError):
            os.unlink(part)
    flush(os.path.dirname(target))


def flush(path: str | Path) -> None:
    """Flush a file, or the names in a folder, so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system does not support it
            raise
    finally:
        os.close(handle)


def _write_to_disk(file: IO[bytes], write: Callable[[Any], object]) -> int:
    """Call `write(file)`, and return the checksum of the bytes.

    torch.save replaces an error of writing by one of its own, about positions in the file; the
    first error of writing is raised instead.
    """
    checksum, first = 0, None

    class Content:
        def write(self, data: bytes | memoryview, /) -> int:
            nonlocal checksum, first
            try:
                written = file.write(data)
            except OSError as error:
                first = first or error
                raise
            checksum = zlib.crc32(data, checksum)
            return written

        def flush(self) -> None:
            file.flush()

    try:
        write(Content())
        file.flush()
    except RuntimeError:
        if first is None:
            raise
        raise first from None
    os.fsync(file.fileno())
    # drop the page cache, so that the comparison reads the disk
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return checksum


def free_space(path: str | Path) -> tuple[int, Path]:
    """Return the bytes that are free for a file or folder, and the nearest folder that exists."""
    folder = Path(path)
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free, folder


def require_space(path: Path, needed: float) -> None:
    """Refuse to begin what will not fit on the disk."""
    free, folder = free_space(path)
    if needed > free:
        raise UserError(
            f"{size(needed)} are needed on the disk of {folder}, {size(free)} are free: free some "
            "space, or write elsewhere (--exp-dir, --log-dir)"
        )


@contextmanager
def names_full_disk(folder: Path) -> Iterator[None]:
    """Add to errors about a full disk the folder that the block writes to, and its free space."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE or error.strerror != os.strerror(error.errno):
            raise
        raise _explained(error, str(folder), ending="") from None


def _explained(error: OSError, target: str, expected_bytes: int = 0, ending: str = KEPT) -> OSError:
    """Return the error in words that say what to do, with the name of the file."""
    reason = _NO_SPACE.get(error.errno or 0)
    if reason is None:
        return OSError(error.errno, f"it cannot be written ({error.strerror})", target)
    needed = f", {size(expected_bytes)} are needed" if expected_bytes else ""
    return OSError(
        error.errno,
        f"{reason}: {size(free_space(target)[0])} are free{needed}. Free some space and run the "
        f"same command again{ending}",
        target,
    )


def plain(value: Any) -> Any:
    """Return numbers, strings, lists and dictionaries; a number that is not finite becomes None."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(getattr(value, name)) for name in (f.name for f in fields(value))}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(own) for name, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(own) for own in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
