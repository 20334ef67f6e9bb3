"""Extract an archive into a new directory, rejecting entries that would escape it."""

import errno
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Self

from highrank_plugins.common.files import require_regular
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.progress import bar_options
from highrank_plugins.common.user_error import UserError

_BLOCK = 1 << 20
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError,
    NotImplementedError,  # a zip with an unknown compression method
)  # fmt: skip
LARGEST_RATIO = 200  # ratio of unpacked to packed bytes; about 5 for text
SMALLEST_LIMIT = 10**9  # bytes that any archive may unpack to
_LONGEST_HEADER = 1 << 20
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def extract(archive: Path, folder: Path, wanted: frozenset[str] | None = None) -> None:
    """Write the files of a .tar, .tar.gz, .tgz or .zip, or the one in a .gz, into a new folder.

    Files are streamed. Only regular files and folders are written. Links, devices, absolute names
    and names with `..` are refused. So is an archive that unpacks to more than `LARGEST_RATIO`
    times its size. The folder appears when it is complete. With `wanted`, only files of these names
    are written; all other names are checked, too.
    """
    if folder.exists():
        raise FileExistsError(errno.EEXIST, "exists already; delete it first", str(folder))
    require_regular(archive)
    unpack = next((u for end, u in _KINDS.items() if archive.name.endswith(end)), None)
    if unpack is None:
        raise UserError(f"{archive}: expected a name that ends with {', '.join(_KINDS)}")
    with new_folder(folder) as part:
        try:
            unpack(_Folder(part, archive, wanted))
        except _DAMAGE as error:
            # a full disk has an error of its own; all others are the archive's fault
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UserError(
                f"{archive}: damaged ({str(error) or 'it ends too early'}); delete it and fetch it "
                "again"
            ) from None


def largest_size(archive: Path) -> int:
    """Return the number of bytes that an archive may unpack to."""
    return max(SMALLEST_LIMIT, LARGEST_RATIO * archive.stat().st_size)


Opened = Callable[[], IO[bytes] | gzip.GzipFile | None]


class _Folder:
    """Write the entries of an archive into a folder, and refuse forbidden ones."""

    def __init__(self, path: Path, archive: Path, wanted: frozenset[str] | None) -> None:
        self._path, self.archive, self._wanted = path, archive, wanted
        self._limit = self._left = largest_size(archive)

    def add(self, name: str, is_folder: bool, opened: Opened | None) -> None:
        """Write an entry that `opened` opens; None if it is neither file nor folder."""
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise self._refused(f"{name} would lie outside of the folder")
        path = self._path / place
        if is_folder:
            path.mkdir(parents=True, exist_ok=True)
        elif self._wanted is None or str(place) in self._wanted:
            if opened is None or (content := opened()) is None:
                raise self._refused(f"{path.name} is a link, a device or a sparse file")
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, path.open("wb") as file:
                while block := content.read(_BLOCK):
                    self._left -= len(block)
                    if self._left < 0:
                        raise self._refused(
                            f"it unpacks to more than {self._limit:,} bytes, {LARGEST_RATIO} times "
                            "its size; unpack it by hand if you trust it"
                        )
                    file.write(block)

    def _refused(self, reason: str) -> UserError:
        return UserError(f"{self.archive}: refused, since {reason}")


def _untar(folder: _Folder) -> None:
    from tqdm import tqdm

    archive = folder.archive
    with (
        archive.open("rb") as raw,
        tqdm.wrapattr(
            raw, "read", total=archive.stat().st_size, desc="extract", **bar_options()
        ) as shown,
        nullcontext(shown) if archive.suffix == ".tar" else gzip.GzipFile(fileobj=shown) as file,
    ):
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_ShortInfo) as tar:
            for member in tar:
                regular = member.isreg() and not member.issparse()
                opened = partial(tar.extractfile, member) if regular else None
                folder.add(member.name, member.isdir(), opened)
            while rest := tar.fileobj.read(_BLOCK):  # tarfile takes damaged headers for the end
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("it has data after its end")
        while file.read(_BLOCK):  # reads to gzip's checksum at the end
            pass


class _ShortInfo(tarfile.TarInfo):
    """Refuse a header of a tar that is long, because tarfile reads it whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _HEADERS and header.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"it has a header of {header.size:,} bytes")
        return header


def _unzip(folder: _Folder) -> None:
    with zipfile.ZipFile(folder.archive) as zipped:
        for member in zipped.infolist():
            regular = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
            opened = partial(_unlocked, folder, zipped, member) if regular else None
            folder.add(member.filename, member.is_dir(), opened)


def _unlocked(folder: _Folder, zipped: zipfile.ZipFile, member: zipfile.ZipInfo) -> IO[bytes]:
    if member.flag_bits & 1:
        raise UserError(f"{folder.archive}: {member.filename} is encrypted")
    return zipped.open(member)


def _gunzip(folder: _Folder) -> None:
    if folder.archive.stat().st_size == 0:
        raise EOFError  # gzip would take it for an empty file
    name = folder.archive.name.removesuffix(".gz")
    folder.add(name, False, partial(gzip.open, folder.archive))


_KINDS = {".tar.gz": _untar, ".tgz": _untar, ".tar": _untar, ".zip": _unzip, ".gz": _gunzip}
