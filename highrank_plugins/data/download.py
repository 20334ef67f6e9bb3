"""One file over HTTP, gone on with where an earlier try ended."""

import fcntl
import http.client
import os
import re
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from highrank_plugins.common.progress import bar_options

# seconds before another try; tries that brought something do not count
PAUSES = (1, 2, 4, 8)
TIMEOUT = 60
BLOCK = 1 << 18
_BUSY = {408, 425, 429}


class DownloadError(ValueError):
    """The file could not be had; the message says why, and how to go on."""


class BusyError(ValueError):
    """Another process is downloading the file."""


class _Interrupted(Exception):
    """The answer ended early, or was not what was asked for; another try may help."""


_PASSING = (
    _Interrupted,
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def download(url: str, part: Path) -> None:
    """Complete `part` from `url` (http, https, file, or a path).

    What lies in `part` is taken for the beginning of the file, and only the rest asked for; a
    server that cannot send a rest sends all. Whether it is the beginning of the same file is for
    the caller to check (by the checksum).

    Raises:
        DownloadError: no network, the server refuses, or it ended too early too often. `part` keeps
            what has come.
        BusyError: another process is downloading it.
    """
    with _locked(part) as file:
        source = _local_path(url)
        if source is not None:
            _copy(source, file)
            return
        failures = 0
        while True:
            before = _size(file)
            try:
                _transfer(url, file)
                return
            except _PASSING as error:
                failures = failures + 1 if _size(file) <= before else 1
                _give_up_or_wait(url, error, failures)


def _give_up_or_wait(url: str, error: Exception, failures: int) -> None:
    if _is_final(error) or failures > len(PAUSES):
        raise DownloadError(f"{url}: {_reason(error)}") from None
    time.sleep(PAUSES[failures - 1])


def _is_final(error: Exception) -> bool:
    if not isinstance(error, urllib.error.HTTPError):
        return False
    return error.code < 500 and error.code not in _BUSY


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({error.reason})"
    return str(error) or type(error).__name__


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The file, open at its end, and to nobody else.

    Raises:
        BusyError: another process has it.
    """
    with part.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"{part}: another process is downloading it; wait for it") from None
        yield file


def _local_path(url: str) -> Path | None:
    """The path that a URL of a local file, or a bare path, names; None for HTTP.

    Raises:
        DownloadError: another kind of URL.
    """
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return None
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme:
        raise DownloadError(f"{url}: expected http://, https://, file:// or a path")
    return Path(url)


def _copy(source: Path, file: BinaryIO) -> None:
    if not source.is_file():
        raise DownloadError(f"{source}: no such file")
    with source.open("rb") as original:
        file.truncate(0)
        shutil.copyfileobj(original, file, BLOCK)


def _size(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _transfer(url: str, file: BinaryIO) -> None:
    have = _size(file)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        # 416: there is nothing after what we have
        if error.code != 416 or not have:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return
        file.truncate(0)
        raise _Interrupted("the beginning in FILE.part is not of this file") from None
    with answer:
        start = _start(answer, have)
        if start != have:
            file.truncate(0)
        if start not in (0, have):
            raise _Interrupted(f"the server sends another part than from byte {have} on")
        _receive(answer, file, start)


def _start(answer: http.client.HTTPResponse, have: int) -> int:
    """The byte with which an answer begins; 0 where the server ignored what was asked for."""
    if not have or answer.status != 206:
        return 0
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else -1


def _receive(answer: http.client.HTTPResponse, file: BinaryIO, start: int) -> None:
    from tqdm import tqdm

    length = answer.headers.get("Content-Length")
    total = None if length is None else start + int(length)
    with tqdm(
        total=total, initial=start, unit="B", unit_scale=True, desc="download", **bar_options()
    ) as bar:
        while block := answer.read(BLOCK):
            file.write(block)
            bar.update(len(block))
    if total is not None and _size(file) < total:
        raise _Interrupted(f"the connection ended after {_size(file):,} of {total:,} bytes")
