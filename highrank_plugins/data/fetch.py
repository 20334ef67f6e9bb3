"""Fetch files of a corpus, resume downloads, and check files before they get their names."""

import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from highrank_plugins.common import files
from highrank_plugins.common.files import ChecksumError
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.user_error import UserError

# seconds before each retry; attempts that brought the file forward do not count
PAUSES = (1, 2, 4, 8)
LEDGER = "checksums.txt"
TIMEOUT = 60
BLOCK = 1 << 18
_BUSY = {408, 425, 429}


class _NotFetched(UserError):
    """Report why a file could not be downloaded, and how to continue."""


class _Interrupted(Exception):
    """Report an answer that ended early or does not match the request; a retry may help."""


_PASSING = (
    _Interrupted, urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError,
    ssl.SSLError,
)  # fmt: skip


def fetch(
    url: str,
    output: Path,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    size: int | None = None,
    ledger: Path | None = None,
) -> str:
    """Ensure that `output` is the file at `url`, and return a line that says what was done.

    A download of a file with a published checksum is resumed from `output`.part. `ledger`, by
    default `LEDGER` beside it, records an unpublished checksum, and is compared with it later.
    """
    ledger = ledger or output.with_name(LEDGER)
    files.require_regular(output)
    there = is_whole = output.exists()
    path = output if there else output.with_name(f"{output.name}.part")
    published = {name: value for name, value in (("sha256", sha256), ("md5", md5)) if value}
    if not there:
        try:
            is_whole = _download(url, path, size, resumes=bool(published))
        except _NotFetched as error:
            again = ""
            if published and (have := path.stat().st_size):
                again = f"run this again to resume from the {have:,} bytes in {path}, or "
            else:
                path.unlink()
            raise UserError(
                f"{error}; {again}get the file in another way (a browser, another machine) from "
                f"{url} and put it at {output}"
            ) from None
    if size is not None and (found := path.stat().st_size) != size:
        raise ChecksumError(
            f"{path}: has {found:,} bytes but should have {size:,}: it is truncated, or a "
            "different file; delete it and fetch it again"
        )
    for algorithm, value in published.items():
        files.check_sum(path, value, algorithm)
    said = f"its {' and '.join(published)} is the published one"
    if not published:
        said = _compare_or_record(path, output, ledger, is_whole)
    if not there:  # write only if needed: an existing file may be on a read-only disk
        os.replace(path, output)
    return f"{output}: {'already present' if there else 'fetched'}, {said}"


def _compare_or_record(path: Path, output: Path, ledger: Path, is_whole: bool) -> str:
    """Compare a file without a published checksum with what the ledger has, or record it."""
    recorded, key = files.read_ledger(ledger), os.path.relpath(output, ledger.parent)
    if key not in recorded:
        _check_content(path, output, is_whole)
    found = files.checksum(path)
    if recorded.get(key, found) != found:
        raise ChecksumError(
            f"{path}: its sha256 is {found} but was {recorded[key]} when {ledger} was written: "
            "the file is damaged or a different one; delete it and fetch it again. If the "
            f"earlier file was the wrong one, delete its line in {ledger}"
        )
    if key in recorded:
        return f"its sha256 equals the one in {ledger}"
    lines = [f"{value}  {name}\n" for name, value in {**recorded, key: found}.items()]
    files.write_text(ledger, "".join(lines))
    return f"no sha256 is published; it was recorded in {ledger} and will be compared later"


def _check_content(path: Path, output: Path, is_whole: bool) -> None:
    """Check the content of a file without a published checksum, before its own is recorded."""
    with path.open("rb") as file:
        start = file.read(512)
    text = start.lower()
    if not start:
        problem = "it is empty"
    elif b"<!doctype html" in text or b"<html" in text:
        problem = "it is a web page (a login?)"
    elif not is_whole:
        problem = "the server did not state its length, so it may be truncated"
    else:
        return
    raise ChecksumError(
        f"{path}: {problem}, and no checksum is published; delete it, get the "
        f"file in another way (a browser, another machine), and put it at {output}"
    )


def _download(url: str, part: Path, size: int | None, resumes: bool) -> bool:
    """Download a file into `part`, or what follows there; return whether its length is known."""
    failures = 0
    with files.open_own(part, "ab") as file:
        url = _with_scheme(url)
        while True:
            if not resumes:
                file.truncate(0)
            before = _size(file)
            try:
                return _transfer(url, file, size) or size is not None
            except _PASSING as error:
                failures = 1 if resumes and _size(file) > before else failures + 1
                code = error.code if isinstance(error, urllib.error.HTTPError) else 500
                if (code < 500 and code not in _BUSY) or failures > len(PAUSES):
                    raise _NotFetched(f"{url}: {_reason(error)}") from None
                time.sleep(PAUSES[failures - 1])


def _with_scheme(url: str) -> str:
    """Return a URL; that of a local file, if it is one or a bare path."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return url
    if parts.scheme not in ("", "file"):
        raise _NotFetched(f"{url}: expected http://, https://, file:// or a path")
    path = Path(unquote(parts.path) if parts.scheme else url)
    if not path.is_file():
        raise _NotFetched(f"{path}: no such file")
    return path.absolute().as_uri()


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({error.reason})"
    return str(error) or type(error).__name__


def _size(file: IO[bytes]) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _transfer(url: str, file: IO[bytes], size: int | None) -> bool:
    """Receive the rest of a file; return whether its length is known."""
    have = _size(file)
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), None, TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not have:  # the server has nothing beyond what we already have
            raise
        file.truncate(0)
        raise _Interrupted("FILE.part has no rest on the server") from None
    with answer:
        start = 0  # of an answer that ignores the range
        if have and answer.status == 206:
            match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
            start = int(match[1]) if match else -1
        if start != have:
            file.truncate(0)
        if start not in (0, have):
            raise _Interrupted(f"the server did not continue at byte {have}")
        return _receive(answer, file, start, size)


def _receive(
    answer: http.client.HTTPResponse, file: IO[bytes], start: int, size: int | None
) -> bool:
    """Append a response, which begins at byte `start`; return whether it stated its length."""
    from tqdm import tqdm

    length = answer.headers.get("Content-Length") or ""
    total = start + int(length) if length.isdecimal() else None
    most = size or total
    with tqdm(
        total=total, initial=start, unit="B", unit_scale=True, desc="download", **bar_options()
    ) as bar:
        while block := answer.read(BLOCK):
            start += len(block)
            if most is not None and start > most:
                raise _NotFetched(f"{answer.url}: sends more than the {most:,} bytes of the file")
            file.write(block)
            bar.update(len(block))
    if total is not None and _size(file) < total:
        raise _Interrupted(f"the connection ended after {_size(file):,} of {total:,} bytes")
    return total is not None
