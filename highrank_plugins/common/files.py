"""Write files completely or not at all, compare checksums, and make plain values for JSON."""

import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from highrank_plugins.common.formatting import size
from highrank_plugins.common.user_error import UserError, cannot_be_written, free_space

SUMS = "sha256sums"  # the ledger of binarised data
CODE = ("*.[ch]pp", "*.py")  # what a --user-dir computes with
_BLOCK = 8 << 20
MOST_JSON = 64 << 20  # bytes of a JSON file; none of ours has a tenth of it
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
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    require_regular(path)
    if (found := path.stat().st_size) > MOST_JSON:
        raise ValueError(f"{path}: {size(found)}, and ours have {size(MOST_JSON)} at most")
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path}: not JSON ({error}); write the file again") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, see `write_whole`; into a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()
    write_whole(path, lambda file: file.write(content))


def write_whole(path: str | Path, write: Callable[[Any], object]) -> None:
    """Call `write(file)`; `path` holds all of it afterwards, or what it held before."""
    target = os.path.abspath(path)
    is_stream = os.path.dirname(target) in ("/dev", "/dev/fd")  # also of a file: /dev/stdout
    if is_stream or (os.path.exists(target) and not os.path.isfile(target)):
        with _opened_stream(target) as stream:
            write(stream)
        return
    with _placed(target) as part:
        if os.path.islink(part):
            os.unlink(part)  # it leads elsewhere
        with open_own(part, "wb") as file:
            checksum = _write_to_disk(file, write)
        found = 0
        with open(part, "rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                found = zlib.crc32(block, found)
        if found != checksum:
            raise OSError(errno.EIO, "the disk does not hold the written data")


def _opened_stream(path: str) -> IO[bytes]:
    """Open a device or a pipe to write, but not a pipe whose reader would be waited for."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise UserError(f"{path} is a pipe that nobody reads: remove it, or read it") from None
    os.set_blocking(handle, True)
    return open(handle, "wb")


@contextmanager
def _placed(target: str) -> Iterator[str]:
    """Yield the name of a new file; give it the name of the target when the block ends."""
    part = f"{target}.tmp"
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        raise cannot_be_written(error, target) from None
    finally:
        with suppress(OSError):
            os.unlink(part)  # a .tmp file is always incomplete
    flush(os.path.dirname(target))


def link_whole(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, replacing any file of that name; without hard links, copy it."""
    source, target = os.path.realpath(source), os.path.abspath(target)
    if os.path.lexists(target) and os.path.samestat(os.stat(source), os.lstat(target)):
        return  # renaming one name of a file to another of its names would do nothing
    try:
        with _placed(target) as part:
            with suppress(FileNotFoundError):
                os.unlink(part)  # left behind by a killed process
            os.link(source, part)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open(source, "rb") as file:
            write_whole(target, lambda copy: shutil.copyfileobj(file, copy, _BLOCK))


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
    """Call `write(file)`, and return the checksum of the bytes."""
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
        raise first from None  # torch.save hides it behind an error about positions in the file
    os.fsync(file.fileno())
    # drop the page cache, so that the comparison reads the disk
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return checksum


def require_space(path: Path, needed: float) -> None:
    """Refuse to begin what will not fit on the disk."""
    free, folder = free_space(path)
    if needed > free:
        raise UserError(
            f"{size(needed)} are needed on the disk of {folder}, {size(free)} are free: free some "
            "space, or write elsewhere (--exp-dir, --log-dir)"
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


class ChecksumError(UserError):
    """Report a checksum that does not match, or a malformed list of them."""


def checksum(path: Path, algorithm: str = "sha256") -> str:
    """Return the checksum in hexadecimal digits; read the file in blocks."""
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def check_sum(path: Path, expected: str, algorithm: str = "sha256") -> None:
    """Compare a file with a published checksum."""
    if (found := checksum(path, algorithm)) != expected:
        raise ChecksumError(
            f"{path}: its {algorithm} is {found} but should be {expected}: the file is "
            "damaged or a different one; delete it and fetch it again"
        )


def read_ledger(ledger: Path) -> dict[str, str]:
    """Return checksums by name, none if the ledger, which `sha256sum` could write, is missing."""
    require_regular(ledger)
    sums, text = {}, ledger.read_text("utf-8", "replace") if ledger.exists() else ""
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := re.fullmatch(r"([0-9a-f]{64})  (.+)", line)):
            raise ChecksumError(
                f"{ledger}:{number}: expected a sha256, two spaces and a name; delete the line"
            )
        sums[match[2]] = match[1]
    return sums


@cache
def files_digest(path: Path, *patterns: str) -> str:
    """Return a digest of a file, or of names and contents of the files in a folder or PATH.*."""
    if path.is_file():
        return checksum(path)
    if path.is_dir():
        found = {file for pattern in patterns or ("*",) for file in path.rglob(pattern)}
    else:
        path, name = path.parent, path.name
        found = {*path.glob(f"{glob.escape(name)}.*")}
    lines = [f"{f.relative_to(path)} {checksum(f)}\n" for f in sorted(found) if f.is_file()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_sums(folder: Path) -> None:
    """Write the checksums of a folder of binarised data, as `sha256sum` would."""
    files = (f for pattern in ("*.bin", "*.idx", "dict*.txt") for f in folder.glob(pattern))
    write_text(folder / SUMS, "".join(f"{checksum(f)}  {f.name}\n" for f in sorted(files)))


def digest_of_words(words: Iterable[str]) -> str:
    """Return the sha256 of a dictionary's words in order, which checkpoints hold."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
