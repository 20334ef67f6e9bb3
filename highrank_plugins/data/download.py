"""Download one file over HTTP, and resume an earlier download."""

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
from typing import IO
from urllib.parse import unquote, urlsplit

from highrank_plugins.common.files import open_own, try_lock
from highrank_plugins.common.progress import bar_options

# seconds before each retry; attempts that received something do not count
PAUSES = (1, 2, 4, 8)
TIMEOUT = 60
BLOCK = 1 << 18
_BUSY = {408, 425, 429}


class DownloadError(ValueError):
    """Report why a file could not be downloaded, and how to continue."""


class BusyError(ValueError):
    """Report that another process is downloading the file."""


class _Interrupted(Exception):
    """Report an answer that ended early or does not match the request; a retry may help."""


_PASSING = (
    _Interrupted,
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
)


def download(url: str, part: Path, *, size: int | None = None, checked: bool = False) -> bool:
    """Download `url` (http, https, file, or a path) into `part`.

    `part` holds the beginning of the file, and only the rest is requested, if the server
    still has the same version of the file: its ETag or date is in `part`.version. A server that
    cannot send a part sends the whole file. Without a published checksum, a file of unknown
    version is requested whole.

    Args:
        size: length of the file in bytes, if known; a longer file is refused.
        checked: whether the caller compares the file with a published checksum. If so, a download
            whose version is unknown is resumed, too.
    Returns:
        Whether the length of the file is known, so that it cannot be truncated.
    """
    with _locked(part) as file:
        source = _local_path(url)
        if source is not None:
            _copy(source, file)
            return True
        version = part.with_name(f"{part.name}.version")
        if version.is_symlink():
            version.unlink()  # the content of the file it points to would be sent to the server
        failures = 0
        while True:
            if not checked and not version.exists():
                file.truncate(0)
            before = _size(file)
            try:
                sure = _transfer(url, file, version, size)
            except _PASSING as error:
                failures = failures + 1 if _size(file) <= before else 1
                _give_up_or_wait(url, error, failures)
            else:
                version.unlink(missing_ok=True)
                return sure or size is not None


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
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """Open the file at its end, locked against other processes."""
    with open_own(part, "ab") as file:
        if not try_lock(file):
            raise BusyError(f"{part}: another process is downloading it; wait until it ends")
        yield file


def _local_path(url: str) -> Path | None:
    """Return the path that a URL of a local file, or a bare path, names; None for HTTP."""
    parts = urlsplit(url)
    if parts.scheme in ("http", "https"):
        return None
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme:
        raise DownloadError(f"{url}: expected http://, https://, file:// or a path")
    return Path(url)


def _copy(source: Path, file: IO[bytes]) -> None:
    if not source.is_file():
        raise DownloadError(f"{source}: no such file")
    with source.open("rb") as original:
        file.truncate(0)
        shutil.copyfileobj(original, file, BLOCK)


def _size(file: IO[bytes]) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _transfer(url: str, file: IO[bytes], version: Path, size: int | None) -> bool:
    """Receive the rest of a file; return whether its length is known."""
    have = _size(file)
    headers = {"Range": f"bytes={have}-"} if have else {}
    known = version.read_text(encoding="utf-8") if have and version.exists() else None
    if known:
        headers["If-Range"] = known
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        # 416: the server has nothing beyond what we already have
        if error.code != 416 or not have:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return True
        file.truncate(0)
        raise _Interrupted("FILE.part is not the beginning of this file") from None
    with answer:
        _check_form(answer, is_compressed=Path(file.name).stem.endswith((".gz", ".tgz")))
        start = _start(answer, have)
        if start != have:
            file.truncate(0)
        if start not in (0, have):
            raise _Interrupted(f"the server did not continue at byte {have}")
        found = _version_of(answer)
        if found:
            version.write_text(found, encoding="utf-8")
        else:
            version.unlink(missing_ok=True)
        if start and known and found not in (None, known):  # some servers ignore If-Range
            file.truncate(0)
            raise _Interrupted(f"{url} has changed since its beginning was downloaded")
        return _receive(answer, file, start, size)


def _check_form(answer: http.client.HTTPResponse, is_compressed: bool) -> None:
    """Refuse an answer whose bytes are not those of the file, or cannot be counted.

    Args:
        is_compressed: whether the file itself is; some servers call that its encoding.
    """
    encoding, length = (answer.headers.get(f"Content-{name}") for name in ("Encoding", "Length"))
    if encoding not in (None, "identity") and not is_compressed:
        raise DownloadError(f"{answer.url}: the server sends the file in the encoding {encoding!r}")
    if length is not None and not length.isdecimal():
        raise DownloadError(f"{answer.url}: the server states a length of {length!r}")


def _version_of(answer: http.client.HTTPResponse) -> str | None:
    """Return what identifies this version of the file, if the server says it.

    If-Range takes no weak ETag (RFC 9110, 13.1.5).
    """
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified")


def _start(answer: http.client.HTTPResponse, have: int) -> int:
    """Return the position of a response's first byte; 0 if the server ignored the range."""
    if not have or answer.status != 206:
        return 0
    match = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    return int(match[1]) if match else -1


def _receive(
    answer: http.client.HTTPResponse, file: IO[bytes], start: int, size: int | None
) -> bool:
    """Append a response, which begins at byte `start`; return whether it stated its length."""
    from tqdm import tqdm

    length = answer.headers.get("Content-Length")
    total = None if length is None else start + int(length)
    most = total if size is None else size
    if size is not None and total is not None and total > size:
        raise DownloadError(f"{answer.url}: has {total:,} bytes, but the file should have {size:,}")
    with tqdm(
        total=total, initial=start, unit="B", unit_scale=True, desc="download", **bar_options()
    ) as bar:
        while block := answer.read(BLOCK):
            start += len(block)
            if most is not None and start > most:
                raise DownloadError(f"{answer.url}: sends more than the {most:,} bytes of the file")
            file.write(block)
            bar.update(len(block))
    if total is not None and _size(file) < total:
        raise _Interrupted(f"the connection ended after {_size(file):,} of {total:,} bytes")
    return total is not None
