"""Downloads from servers that die, forget ranges, refuse or are missing; what corpus.yaml says."""

import errno
import hashlib
import os
import random
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from highrank_plugins.common.blocks import ConfigurationError
from highrank_plugins.common.files import ChecksumError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import fetch as module
from highrank_plugins.data.corpus_files import UNKNOWN, check_languages, read_corpus
from highrank_plugins.data.fetch import fetch
from tests.cli import highrank

RECIPES = Path(__file__).parents[2] / "recipes"
CONTENT = random.Random(3).randbytes(700_001)
SUM = hashlib.sha256(CONTENT).hexdigest()
OTHER = hashlib.sha256(b"").hexdigest()


class Server(ThreadingHTTPServer):
    """Serve `content` under every path."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.ranges = True  # whether it sends the rest of a file that is asked for
        self.lengths = True  # whether it says how long an answer is
        self.die_after: list[int] = []  # bytes after which an answer ends early, one answer each
        self.statuses: list[int] = []  # to answer with instead, one answer each
        self.asked: list[str | None] = []  # the Range of each request
        self.url = f"http://127.0.0.1:{self.server_port}/file.bin"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.statuses:
            self.send_error(self.server.statuses.pop(0))
            return
        whole = self.server.content
        rest = asked and self.server.ranges
        start = int(re.match(r"bytes=(\d+)-", asked)[1]) if rest else 0
        if start >= len(whole) and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(whole)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        length = str(len(whole) - start) if self.server.lengths else "unknown"
        self.send_header("Content-Length", length)
        self.end_headers()
        end = start + self.server.die_after.pop(0) if self.server.die_after else len(whole)
        self.wfile.write(whole[start:end])

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(module, "PAUSES", (0, 0))
    with Server(CONTENT) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def output(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "file.bin"


@pytest.fixture
def part(output):
    """Return the path for the beginning that an earlier attempt left."""
    return output.with_name("file.bin.part")


def test_a_whole_file_is_fetched_and_an_existing_one_is_only_checked(server, output, monkeypatch):
    assert "its sha256 is the published one" in fetch(server.url, output, sha256=SUM)
    assert output.read_bytes() == CONTENT
    assert list(output.parent.iterdir()) == [output]
    copy = output.rename(output.with_name("my copy"))
    for url in (f"{copy}", f"file://{copy.parent}/my%20copy"):
        output.unlink(missing_ok=True)
        fetch(url, output)
        assert output.read_bytes() == CONTENT

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
def test_a_server_that_dies_is_asked_for_the_rest_now_or_later(server, output, part, published):
    """Start again without a checksum, since nothing shows that the rest is of the same file."""
    server.die_after = [300_000, 100_000]
    fetch(server.url, output, sha256=published)
    rest = ["bytes=300000-", "bytes=400000-"] if published else [None, None]
    assert server.asked == [None, *rest] and output.read_bytes() == CONTENT
    output.unlink()
    server.die_after, server.asked = [300_000, 0, 0, 0, 0] if published else [9] * 9, []
    with pytest.raises(UserError) as refused:
        fetch(server.url, output, sha256=published)
    said = str(refused.value)
    assert not output.exists() and part.exists() == bool(published)
    if not published:
        assert re.search(r"^[^;]*of 700,001 bytes; get the file in another way", said)
        assert {*server.asked} == {None}
        return
    assert "the connection ended after 300,000 of 700,001 bytes" in said
    assert f"put it at {output}" in said and f"resume from the 300,000 bytes in {part}" in said
    assert part.read_bytes() == CONTENT[:300_000]
    server.die_after = []
    fetch(server.url, output, sha256=SUM)
    assert server.asked[-1] == "bytes=300000-"


PAGE = r"a web page \(a login\?\)"


@pytest.mark.parametrize(
    ("server_has", "options", "problem"),
    [
        ({"content": b"\n<!DOCTYPE html><p>Sign in</p>"}, {}, PAGE),
        ({"content": b"\xef\xbb\xbf<!-- a --><html><p>Sign in</p>"}, {}, PAGE),
        ({"content": b""}, {}, "it is empty"),
        ({"lengths": False}, {}, "did not state its length"),
        *(({"lengths": known}, {"size": 1000}, "more than the 1,000 bytes") for known in (0, 1)),
        ({}, {"size": len(CONTENT) + 1}, "has 700,001 bytes but should have 700,002"),
        ({}, {"md5": "0" * 32}, f"its md5 is .* but should be {'0' * 32}"),
    ],
)
def test_another_file_is_neither_taken_nor_recorded(
    server, output, tmp_path, server_has, options, problem
):
    vars(server).update(server_has)
    with pytest.raises(UserError, match=problem):
        fetch(server.url, output, ledger=tmp_path / "sums", **options)
    assert not (tmp_path / "sums").exists() and not output.exists()
    part = output.with_name(f"{output.name}.part")
    assert not part.exists() or part.stat().st_size <= options.get("size", 10**6)


@pytest.mark.parametrize(
    ("left", "ranges", "asked"),
    [
        (b"something else", False, ["bytes=14-"]),  # the server sends all again
        (CONTENT + b"more", True, [f"bytes={len(CONTENT) + 4}-", None]),
    ],
)
def test_a_partial_file_is_completed_or_discarded(server, output, part, left, ranges, asked):
    server.ranges = ranges
    part.write_bytes(left)
    fetch(server.url, output, sha256=SUM)
    assert output.read_bytes() == CONTENT and server.asked == asked


def test_a_part_of_another_file_is_detected_and_a_link_not_followed(server, output, part, tmp_path):
    part.write_bytes(b"x" * 1000)
    server.statuses = [503, 429]  # a busy server is asked again
    with pytest.raises(ChecksumError, match=f"should be {SUM}"):
        fetch(server.url, output, sha256=SUM)
    assert not output.exists() and len(server.asked) == 3
    assert part.stat().st_size == len(CONTENT)
    part.rename(victim := tmp_path / "victim")
    before = victim.read_bytes()
    part.symlink_to(victim)
    with pytest.raises(UserError, match=r"file\.bin\.part is a symbolic link"):
        fetch(server.url, output, sha256=SUM)
    assert victim.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (None, "the server answers 404 Not Found"),
        ("http://127.0.0.1:9/file.bin", "no connection"),
        ("ftp://host/file", "expected http://"),
    ],
)
def test_a_file_that_cannot_be_fetched_is_named_with_its_place(server, output, url, message):
    server.statuses = [404]
    with pytest.raises(UserError, match=message) as refused:
        fetch(url or server.url, output)
    assert f"from {url or server.url} and put it at {output}" in str(refused.value)
    assert len(server.asked) == (url is None) and list(output.parent.iterdir()) == []


def test_the_ledger_records_the_first_checksum_and_compares_later(server, output):
    ledger = output.parent / "checksums.txt"
    said = fetch(server.url, output, ledger=ledger)
    assert "no sha256 is published; it was recorded" in said
    assert ledger.read_text() == f"{SUM}  file.bin\n"
    assert "its sha256 equals the one in" in fetch(server.url, output, ledger=ledger)
    other = output.with_name("other.bin")
    fetch(server.url, other, ledger=ledger)
    assert ledger.read_text() == f"{SUM}  file.bin\n{SUM}  other.bin\n"
    server.lengths = False  # a known size shows that an answer is whole
    known = {"size": len(CONTENT), "ledger": ledger}
    assert "it was recorded" in fetch(server.url, output.with_name("b"), **known)
    output.unlink()
    server.lengths, server.content = True, b"another edition"
    new = hashlib.sha256(server.content).hexdigest()
    known = f"its sha256 is {new} but was {SUM} when .* wrong one, delete its line in {ledger}"
    with pytest.raises(ChecksumError, match=known):
        fetch(server.url, output, ledger=ledger)
    assert not output.exists()
    for nonsense in (b"nonsense\n", b"\xff\n"):
        ledger.write_bytes(f"{SUM}  a\n".encode() + nonsense)
        with pytest.raises(ChecksumError, match=r"checksums.txt:2: expected a sha256"):
            fetch(server.url, output, ledger=ledger)
    os.mkfifo(output)
    with pytest.raises(UserError, match=r"file\.bin is a pipe or a device; a file is needed here"):
        fetch(server.url, output, ledger=ledger)


# -- corpus.yaml --


def entry(url="http://127.0.0.1:9/a", sha256=UNKNOWN, more=""):
    return f"files:\n  a.bin:\n    url: {url}\n    sha256: {sha256}\n    source: ours\n{more}"


@pytest.mark.parametrize(
    ("sha256", "said"),
    [
        (SUM, "fetched, its sha256 is the published one"),
        (UNKNOWN, "was recorded in"),
        ("0" * 64, f"should be {'0' * 64}"),
    ],
)
def test_the_command_downloads_files_with_the_right_checksum(server, tmp_path, sha256, said):
    file, folder = tmp_path / "corpus.yaml", tmp_path / "download"
    file.write_text(entry(server.url, sha256, f"    size: {len(CONTENT)}\n"))
    done = highrank("data", "fetch", file, folder)
    is_right = sha256 in (SUM, UNKNOWN)
    assert done.exit_code == (0 if is_right else 2) and said in done.output
    assert {path.name for path in folder.glob("a*.bin")} == ({"a.bin"} if is_right else set())
    assert (folder / "checksums.txt").exists() == (sha256 == UNKNOWN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry().replace("    sha256: unknown\n", ""), "needs sha256 .* or md5"),
        (entry().replace("a.bin", "../a.bin"), r"String should match"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, text, message):
    (tmp_path / "corpus.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_corpus(tmp_path / "corpus.yaml")


def test_the_corpora_of_recipes_say_where_a_checksum_is_from_and_are_of_their_languages(tmp_path):
    for path in RECIPES.glob("*/corpus*.yaml"):
        corpus = read_corpus(path)
        for file in corpus.files.values():  # owner/repository and a path
            assert file.sha256 == UNKNOWN or "/" in file.source
        if path.parent.name.startswith("wmt14"):
            check_languages(path, corpus, tuple(path.parent.name.split("_")[1:]))
    file = tmp_path / "corpus.yaml"  # names without a language are those of any
    file.write_text("texts: {train: [[a.src, a.tgt]], valid: [[b.en, b]], test: [[c.en, c.cs]]}\n")
    with pytest.raises(ConfigurationError, match=r"c\.en and c\.cs are named"):
        check_languages(file, read_corpus(file), ("en", "de"))
