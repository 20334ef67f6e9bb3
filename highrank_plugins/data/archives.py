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
from pathlib import Path, PurePosixPath
from typing import IO, Self

from highrank_plugins.common.files import require_regular
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.progress import bar_options

_BLOCK = 1 << 20
Wanted = frozenset[str] | None
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError,
    NotImplementedError,  # a zip with an unknown compression method
)  # fmt: skip
LARGEST_RATIO = 200  # ratio of unpacked to packed bytes; about 5 for text
SMALLEST_LIMIT = 10**9  # bytes that any archive may unpack to
_LONGEST_HEADER = 1 << 20
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class ArchiveError(ValueError):
    """Report an archive that is damaged, or holds forbidden entries."""


def extract(archive: Path, folder: Path, wanted: Wanted = None) -> None:
    """Write the files of a .tar, .tar.gz, .tgz or .zip, or the one in a .gz, into a new folder.

    Files are streamed. Only regular files and folders are written. Links, devices, absolute names
    and names with `..` are refused. So is an archive that unpacks to more than `LARGEST_RATIO`
    times its size. The folder appears when it is complete.

    Args:
        wanted: names of the files to write; all other names are checked, too.
    """
    if folder.exists():
        raise FileExistsError(errno.EEXIST, "exists already; delete it first", str(folder))
    require_regular(archive)
    unpack = _unpacker(archive)
    with new_folder(folder) as part:
        try:
            unpack(archive, _Folder(part, archive), wanted)
        except _DAMAGE as error:
            # a full disk has an error of its own; all others are the archive's fault
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ArchiveError(
                f"{archive}: damaged ({str(error) or 'it ends too early'}); delete it and fetch it "
                "again"
            ) from None


def largest_size(archive: Path) -> int:
    """Return the number of bytes that an archive may unpack to."""
    return max(SMALLEST_LIMIT, LARGEST_RATIO * archive.stat().st_size)


def _unpacker(archive: Path) -> Callable[[Path, "_Folder", Wanted], None]:
    kinds = {".tar.gz": _untar, ".tgz": _untar, ".tar": _untar, ".zip": _unzip, ".gz": _gunzip}
    for suffix, unpack in kinds.items():
        if archive.name.endswith(suffix):
            return unpack
    raise ArchiveError(f"{archive}: expected a name that ends with {', '.join(kinds)}")


def _untar(archive: Path, folder: "_Folder", wanted: Wanted) -> None:
    from tqdm import tqdm

    size = archive.stat().st_size
    with (
        archive.open("rb") as raw,
        tqdm.wrapattr(raw, "read", total=size, desc="extract", **bar_options()) as shown,
        nullcontext(shown) if archive.suffix == ".tar" else gzip.GzipFile(fileobj=shown) as file,
    ):
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_ShortInfo) as tar:
            for member in tar:
                path = folder.inside(member.name)
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True)
                elif _is_wanted(member.name, wanted):
                    regular = member.isreg() and not member.issparse()
                    folder.write(path, tar.extractfile(member) if regular else None)
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


def _unzip(archive: Path, folder: "_Folder", wanted: Wanted) -> None:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            path = folder.inside(member.filename)
            if member.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            if not _is_wanted(member.filename, wanted):
                continue
            if member.flag_bits & 1:
                raise ArchiveError(f"{archive}: {member.filename} is encrypted")
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind in (0, stat.S_IFREG):
                with zipped.open(member) as content:
                    folder.write(path, content)
            else:
                folder.write(path, None)


def _gunzip(archive: Path, folder: "_Folder", wanted: Wanted) -> None:
    if archive.stat().st_size == 0:
        raise EOFError  # gzip would take it for an empty file
    with gzip.open(archive) as content:
        folder.write(folder.inside(archive.name.removesuffix(".gz")), content)


def _is_wanted(name: str, wanted: Wanted) -> bool:
    return wanted is None or str(PurePosixPath(name)) in wanted


class _Folder:
    """Write the entries of an archive into a folder, and refuse forbidden ones."""

    def __init__(self, path: Path, archive: Path) -> None:
        self._path, self._archive = path, archive
        self._limit = largest_size(archive)
        self._left = self._limit

    def inside(self, name: str) -> Path:
        """Return the path of a file of the archive."""
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ArchiveError(
                f"{self._archive}: refused, since {name} would lie outside of the folder"
            )
        return self._path / path

    def write(self, path: Path, content: IO[bytes] | gzip.GzipFile | None) -> None:
        """Write a file.

        Args:
            content: None for an entry that is neither file nor folder.
        """
        if content is None:
            raise ArchiveError(
                f"{self._archive}: refused, since {path.name} is a link, a device or a sparse file"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            while block := content.read(_BLOCK):
                self._left -= len(block)
                if self._left < 0:
                    raise ArchiveError(
                        f"{self._archive}: refused, since it unpacks to more than "
                        f"{self._limit:,} bytes, {LARGEST_RATIO} times its size; unpack it by "
                        "hand if you trust it"
                    )
                file.write(block)
