"""Extract an archive into a new directory, rejecting entries that would escape it."""

import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Self

from highrank_plugins.common.files import require_regular
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.user_error import UserError

# name, whether it is a folder, and a function that opens it if it is a regular file
Entry = tuple[str, bool, Callable[[], IO[bytes] | gzip.GzipFile | None] | None]
_BLOCK = 1 << 20
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError,
    RuntimeError,  # a zip that is encrypted, or has an unknown compression method
)  # fmt: skip
LARGEST_RATIO = 200  # ratio of unpacked to packed bytes; about 5 for text
SMALLEST_LIMIT = 10**9  # bytes that any archive may unpack to
_LONGEST_HEADER = 1 << 20  # bytes
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def extract(archive: Path, folder: Path, wanted: frozenset[str] | None = None) -> None:
    """Write the files of an archive, or those of `wanted` names, into a new folder, all or none."""
    require_regular(archive)
    entries = next((kind for end, kind in _KINDS.items() if archive.name.endswith(end)), None)
    if entries is None:
        raise UserError(f"{archive}: expected a name that ends with {', '.join(_KINDS)}")
    with new_folder(folder) as part:
        try:
            _write(entries(archive), part, archive, wanted)
        except _DAMAGE as error:
            # a full disk has an error of its own; all others are the archive's fault
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UserError(
                f"{archive}: damaged ({str(error) or 'it ends too early'}); delete it and fetch it "
                "again"
            ) from None


def _write(
    entries: Iterator[Entry], folder: Path, archive: Path, wanted: frozenset[str] | None
) -> None:
    limit = left = max(SMALLEST_LIMIT, LARGEST_RATIO * archive.stat().st_size)
    for name, is_folder, opened in entries:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise UserError(f"{archive}: refused, since {name} would lie outside of the folder")
        path = folder / place
        if is_folder:
            path.mkdir(parents=True, exist_ok=True)
        elif wanted is None or str(place) in wanted:
            if opened is None or (content := opened()) is None:
                raise UserError(
                    f"{archive}: refused, since {path.name} is a link, a device or a sparse file"
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            with content, path.open("wb") as file:
                while block := content.read(_BLOCK):
                    left -= len(block)
                    if left < 0:
                        raise UserError(
                            f"{archive}: refused, since it unpacks to more than {limit:,} bytes, "
                            f"{LARGEST_RATIO} times its size; unpack it by hand if you trust it"
                        )
                    file.write(block)


class _ShortInfo(tarfile.TarInfo):
    """Refuse a long header of a tar, since tarfile holds it whole in memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _HEADERS and header.size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"it has a header of {header.size:,} bytes")
        return header


def _tar_entries(archive: Path) -> Iterator[Entry]:
    from tqdm import tqdm

    total = archive.stat().st_size
    with (
        archive.open("rb") as raw,
        tqdm.wrapattr(raw, "read", total=total, desc="extract", **bar_options()) as shown,
        nullcontext(shown) if archive.suffix == ".tar" else gzip.GzipFile(fileobj=shown) as file,
    ):
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_ShortInfo) as tar:
            for member in tar:
                is_regular = member.isreg() and not member.issparse()
                opened = partial(tar.extractfile, member) if is_regular else None
                yield member.name, member.isdir(), opened
            while rest := tar.fileobj.read(_BLOCK):  # tarfile takes damaged headers for the end
                if rest.strip(b"\0"):
                    raise tarfile.ReadError("it has data after its end")
        while file.read(_BLOCK):  # reads to gzip's checksum at the end
            pass


def _zip_entries(archive: Path) -> Iterator[Entry]:
    with zipfile.ZipFile(archive) as zipped:
        for member in zipped.infolist():
            is_regular = stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG)
            opened = partial(zipped.open, member) if is_regular else None
            yield member.filename, member.is_dir(), opened


def _gz_entries(archive: Path) -> Iterator[Entry]:
    if archive.stat().st_size == 0:
        raise EOFError  # gzip would take it for an empty file
    yield archive.name.removesuffix(".gz"), False, partial(gzip.open, archive)


_KINDS = {
    ".tar.gz": _tar_entries, ".tgz": _tar_entries, ".tar": _tar_entries, ".zip": _zip_entries,
    ".gz": _gz_entries,
}  # fmt: skip
