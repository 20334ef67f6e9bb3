"""Fetch files of a corpus, and check them before they get their final names."""

import gzip
import os
import zipfile
import zlib
from pathlib import Path

from highrank_plugins.common.checksums import (
    ChecksumError,
    check_in_ledger,
    check_sum,
    is_in_ledger,
)
from highrank_plugins.data.archives import largest_size
from highrank_plugins.data.download import DownloadError, download

_BLOCK = 1 << 20
# first bytes of archives
_BEGINNINGS = {".gz": b"\x1f\x8b", ".tgz": b"\x1f\x8b", ".zip": b"PK"}


class FetchError(ValueError):
    """Report that no usable file was found, and what to put where."""


def fetch(
    url: str,
    output: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    ledger: Path | None = None,
) -> str:
    """Ensure that `output` is the file at `url`; download it if it is missing.

    An interrupted download is resumed: its first bytes are in `output`.part. A file that was put
    at `output` by hand is checked in the same way.

    Args:
        url: http, https, file, or a path.
        sha256, md5: published checksum of the file.
        size: its length in bytes, if known.
        ledger: file to record an unpublished checksum in, and to compare it with later.
    Returns:
        What was done, in one line.
    """
    there = output.exists()
    path = output if there else output.with_name(f"{output.name}.part")
    sums = {"sha256": sha256, "md5": md5}
    sure = True
    if not there:
        output.parent.mkdir(parents=True, exist_ok=True)
        sure = _download(url, path, output, size=size, checked=any(sums.values()))
    _check_size(path, size)
    if not any(sums.values()) and not (ledger and is_in_ledger(output, ledger)):
        _check_content(path, output, sure)
    said = _check(path, output, sums, ledger)
    if not there:  # write only if needed: an existing file may be on a read-only disk
        os.replace(path, output)
    return f"{output}: {'already present' if there else 'fetched'}, {said}"


def _download(url: str, part: Path, output: Path, *, size: int | None, checked: bool) -> bool:
    try:
        return download(url, part, size=size, checked=checked)
    except DownloadError as error:
        have = part.stat().st_size
        if not have:
            part.unlink()
        again = f"run this again to resume from the {have:,} bytes in {part}, or " if have else ""
        raise FetchError(
            f"{error}; {again}get the file in another way (a browser, another machine) from {url} "
            f"and put it at {output}"
        ) from None


def _check_size(path: Path, size: int | None) -> None:
    found = path.stat().st_size
    if size is not None and found != size:
        raise ChecksumError(
            f"{path}: has {found:,} bytes but should have {size:,}: it is truncated, or a "
            "different file; delete it and fetch it again"
        )


def _check_content(path: Path, output: Path, sure: bool) -> None:
    """Check the content of a file without a published checksum, before its own is recorded.

    Args:
        sure: whether its length is the one that the server stated.
    """
    with path.open("rb") as file:
        start = file.read(512)
    text = start.lower()
    kind = next((kind for kind in _BEGINNINGS if output.name.endswith(kind)), None)
    if not start:
        problem = "it is empty"
    elif kind is not None and not start.startswith(_BEGINNINGS[kind]):
        problem = f"it is not a {kind} file"
    elif b"<!doctype html" in text or b"<html" in text:
        problem = "it is a web page (a login?)"
    elif not sure:
        problem = "the server did not state its length, so it may be truncated"
    elif kind is not None and (damage := _damage(path, kind)):
        problem = f"it is a damaged {kind} ({damage})"
    else:
        return
    raise ChecksumError(
        f"{path}: {problem}, and no checksum is published; delete it, get the "
        f"file in another way (a browser, another machine), and put it at {output}"
    )


def _damage(path: Path, kind: str) -> str | None:
    """Return what the checksums within an archive find wrong: two spliced files, a missing end."""
    limit = largest_size(path)
    too_large = f"it unpacks to more than {limit:,} bytes"
    try:
        if kind == ".zip":
            with zipfile.ZipFile(path) as archive:
                if sum(member.file_size for member in archive.infolist()) > limit:
                    return too_large
                bad = archive.testzip()
            return None if bad is None else f"wrong checksum of {bad}"
        with gzip.open(path) as file:
            while file.read(_BLOCK):
                if file.tell() > limit:
                    return too_large
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        return str(error)
    return None


def _check(path: Path, output: Path, sums: dict[str, str | None], ledger: Path | None) -> str:
    published = {algorithm: value for algorithm, value in sums.items() if value is not None}
    if published:
        for algorithm, value in published.items():
            check_sum(path, value, algorithm)
        return f"its {' and '.join(published)} is the published one"
    if ledger is None:
        return "its sha256 was not checked"
    if check_in_ledger(path, output, ledger):
        return f"no sha256 is published; it was recorded in {ledger} and will be compared later"
    return f"its sha256 equals the one in {ledger}"
