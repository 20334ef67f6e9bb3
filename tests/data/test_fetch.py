"""Downloads from a server that dies, forgets ranges, refuses or is missing; and checksums."""

import errno
import gzip
import hashlib
import os

import pytest

from highrank_plugins.common.files import ChecksumError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.fetch import fetch
from tests.data.serving import CONTENT

pytestmark = pytest.mark.usefixtures("no_pauses")
SUM = hashlib.sha256(CONTENT).hexdigest()
WHOLE = gzip.compress(CONTENT, mtime=0)
SPLICED = WHOLE[:3000] + gzip.compress(CONTENT[9:], mtime=0)[3000:]
OTHER = hashlib.sha256(b"").hexdigest()


def test_a_whole_file_is_fetched_and_an_existing_one_is_only_checked(server, output, monkeypatch):
    assert "its sha256 is the published one" in fetch(server.url, output, sha256=SUM)
    assert output.read_bytes() == CONTENT
    assert list(output.parent.iterdir()) == [output]

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", read_only)  # it may be on a read-only disk
    md5 = hashlib.md5(CONTENT).hexdigest()
    said = fetch(server.url, output, md5=md5, size=len(CONTENT))
    assert "already present, its md5 is the published one" in said
    with pytest.raises(ChecksumError, match=f"its sha256 is {SUM} but should be {OTHER}"):
        fetch(server.url, output, sha256=OTHER)
    assert server.asked == [None]


@pytest.mark.parametrize("published", [SUM, None])
def test_a_server_that_dies_midway_is_asked_for_the_rest(server, output, published):
    """Start again without a checksum, since nothing shows that the rest is of the same file."""
    server.die_after = [300_000, 100_000]
    fetch(server.url, output, sha256=published)
    rest = ["bytes=300000-", "bytes=400000-"] if published else [None, None]
    assert server.asked == [None, *rest] and output.read_bytes() == CONTENT


def test_a_server_that_keeps_dying_leaves_a_partial_file(server, output):
    server.die_after = [300_000, 0, 0, 0, 0]
    with pytest.raises(UserError) as refused:
        fetch(server.url, output, sha256=SUM)
    part = output.with_name("file.bin.part")
    for said in ("the connection ended after 300,000 of 700,001 bytes", f"put it at {output}",
                 f"resume from the 300,000 bytes in {part}"):  # fmt: skip
        assert said in str(refused.value)
    assert part.read_bytes() == CONTENT[:300_000]
    assert not output.exists()
    server.die_after = []
    fetch(server.url, output, sha256=SUM)
    assert server.asked[-1] == "bytes=300000-"


def test_without_a_checksum_nothing_is_resumed(server, output, part):
    part.write_bytes(CONTENT[:9])
    server.die_after = [9] * 9
    with pytest.raises(UserError, match=r"^[^;]*of 700,001 bytes; get the file in another way"):
        fetch(server.url, output)
    assert set(server.asked) == {None} and not part.exists()


PAGE = r"a web page \(a login\?\)"
SIZE = {"size": 1000, "sha256": SUM}


@pytest.mark.parametrize(
    ("name", "server_has", "options", "problem"),
    [
        ("a.txt", {"content": b"\n<!DOCTYPE html><p>Sign in</p>"}, {}, PAGE),
        ("a.txt", {"content": b"\xef\xbb\xbf<!-- a --><html><p>Sign in</p>"}, {}, PAGE),
        ("a.txt", {"content": b""}, {}, "it is empty"),
        ("a.tgz", {"content": b"plain text"}, {}, "it is not a .tgz file"),
        ("a.tgz", {"content": SPLICED}, {}, r"damaged .tgz \(CRC check"),
        ("a.gz", {"content": WHOLE[:3000]}, {}, r"damaged .gz \(Compressed file ended before"),
        ("a.zip", {"content": b"PK" + CONTENT[:99]}, {}, r"damaged .zip \(File is not a zip file"),
        ("a.txt", {"lengths": False}, {}, "did not state its length"),
        ("a.txt", {"headers": {"Content-Encoding": "gzip"}}, {},
         "sends the file in the encoding 'gzip'"),
        *(("a.txt", {"lengths": False, "headers": {"Content-Length": length}}, {},
           "did not state its length") for length in ("many", "-5")),
        *(("a.txt", {"lengths": known}, SIZE, "more than the 1,000 bytes") for known in (0, 1)),
        ("a.txt", {}, {"size": len(CONTENT) + 1}, "has 700,001 bytes but should have 700,002"),
        ("a.txt", {}, {"md5": "0" * 32}, f"its md5 is .* but should be {'0' * 32}"),
    ],
)  # fmt: skip
def test_another_file_is_neither_taken_nor_recorded(
    server, output, tmp_path, name, server_has, options, problem
):
    vars(server).update(server_has)
    with pytest.raises(UserError, match=problem):
        fetch(server.url, output.with_name(name), ledger=tmp_path / "sums", **options)
    assert not (tmp_path / "sums").exists() and not output.with_name(name).exists()
    part = output.with_name(f"{name}.part")
    assert not part.exists() or part.stat().st_size <= options.get("size", 10**6)


def test_whole_files_are_recorded(server, output, tmp_path):
    server.headers = {"Content-Encoding": "x-gzip"}  # so do some servers for each .tgz
    server.content, ledger = WHOLE, tmp_path / "sums"
    assert "it was recorded" in fetch(server.url, output.with_name("a.tgz"), ledger=ledger)
    server.headers, server.lengths = {}, False  # a known size shows that an answer is whole
    assert "it was recorded" in fetch(server.url, output, ledger=ledger, size=len(WHOLE))


def test_a_download_follows_no_link(server, output, part, tmp_path):
    (tmp_path / "victim").write_text("precious")
    part.symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"file\.bin\.part is a symbolic link"):
        fetch(server.url, output, sha256=SUM)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize(
    ("left", "ranges", "asked"),
    [
        (b"something else", False, ["bytes=14-"]),  # the server sends all again
        (CONTENT, True, [f"bytes={len(CONTENT)}-"]),
        (CONTENT + b"more", True, [f"bytes={len(CONTENT) + 4}-", None]),
    ],
)
def test_a_partial_file_is_completed_or_discarded(server, output, part, left, ranges, asked):
    server.ranges = ranges
    part.write_bytes(left)
    fetch(server.url, output, sha256=SUM)
    assert output.read_bytes() == CONTENT and server.asked == asked


def test_a_part_of_another_file_is_detected_by_its_checksum(server, output, part):
    part.write_bytes(b"x" * 1000)
    server.statuses = [503, 429]  # a busy server is asked again
    with pytest.raises(ChecksumError, match=f"should be {SUM}"):
        fetch(server.url, output, sha256=SUM)
    assert not output.exists() and len(server.asked) == 3
    assert part.stat().st_size == len(CONTENT)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "the server answers 404 Not Found"),
        ("http://127.0.0.1:9/file.bin", "no connection"),
        ("ftp://host/file", "expected http://"),
        ("nowhere.bin", "nowhere.bin: no such file"),
    ],
)
def test_a_file_that_cannot_be_fetched_is_named_with_its_place(server, output, url, message):
    server.statuses = [404]
    with pytest.raises(UserError, match=message) as refused:
        fetch(url or server.url, output)
    assert f"from {url or server.url} and put it at {output}" in str(refused.value)
    assert len(server.asked) == (url is None) and list(output.parent.iterdir()) == []


@pytest.mark.parametrize("url", ["{}/my copy", "file://{}/my%20copy"])
def test_a_local_copy_is_fetched(tmp_path, output, url):
    (tmp_path / "my copy").write_bytes(CONTENT)
    fetch(url.format(tmp_path), output)
    assert output.read_bytes() == CONTENT


def test_the_ledger_records_the_first_checksum_and_compares_later(server, output):
    ledger = output.parent / "checksums.txt"
    said = fetch(server.url, output, ledger=ledger)
    assert "no sha256 is published; it was recorded" in said
    assert ledger.read_text() == f"{SUM}  file.bin\n"
    assert "its sha256 equals the one in" in fetch(server.url, output, ledger=ledger)
    other = output.with_name("other.bin")
    fetch(server.url, other, ledger=ledger)
    assert ledger.read_text() == f"{SUM}  file.bin\n{SUM}  other.bin\n"
    output.unlink()
    server.content = b"another edition"
    new = hashlib.sha256(server.content).hexdigest()
    known = f"its sha256 is {new} but was {SUM} when .* wrong one, delete its line in {ledger}"
    with pytest.raises(ChecksumError, match=known):
        fetch(server.url, output, ledger=ledger)
    assert not output.exists()
    ledger.write_text(f"{SUM}  a\nnonsense\n")
    with pytest.raises(ChecksumError, match=r"checksums.txt:2: expected a sha256"):
        fetch(server.url, output, ledger=ledger)
