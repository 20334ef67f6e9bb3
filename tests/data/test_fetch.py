"""Downloads from a server that dies, forgets ranges, refuses or is missing; and checksums."""

import errno
import gzip
import hashlib
import io
import os
import subprocess
import sys
import zipfile

import pytest

from highrank_plugins.cli import app
from highrank_plugins.common.checksums import ChecksumError
from highrank_plugins.common.user_error import UserError
from highrank_plugins.data import archives
from highrank_plugins.data.fetch import fetch
from tests.data.serving import CONTENT

pytestmark = pytest.mark.usefixtures("no_pauses")
SUM = hashlib.sha256(CONTENT).hexdigest()
WHOLE, OTHER = (gzip.compress(content, mtime=0) for content in (CONTENT, CONTENT[9:]))
OTHER = hashlib.sha256(b"").hexdigest()


def test_a_whole_file_is_fetched(server, output):
    assert "its sha256 is the published one" in fetch(server.url, output, sha256=SUM)
    assert output.read_bytes() == CONTENT
    assert list(output.parent.iterdir()) == [output]
    assert server.asked == [None]


def test_an_existing_file_is_checked_and_not_fetched(server, output):
    fetch(server.url, output)
    server.asked.clear()
    assert "already present" in fetch(server.url, output, sha256=SUM)
    assert server.asked == []
    with pytest.raises(ChecksumError, match=f"its sha256 is {SUM} but should be {OTHER}"):
        fetch(server.url, output, sha256=OTHER)


def test_an_existing_file_may_be_on_a_read_only_disk(tmp_path, output, monkeypatch):
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_bytes(b"text")

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", read_only)
    assert "already present" in fetch("nowhere", output, size=4)


def test_a_server_that_dies_midway_is_asked_for_the_rest(server, output):
    server.die_after = [300_000, 0, 100_000]
    fetch(server.url, output, sha256=SUM)
    assert server.asked == [None, "bytes=300000-", "bytes=300000-", "bytes=400000-"]


def test_a_server_that_keeps_dying_leaves_a_partial_file(server, output):
    server.die_after = [300_000, 0, 0, 0, 0]
    with pytest.raises(UserError) as refused:
        fetch(server.url, output, sha256=SUM)
    message = str(refused.value)
    part = output.with_name("file.bin.part")
    assert "the connection ended after 300,000 of 700,001 bytes" in message
    assert f"resume from the 300,000 bytes in {part}" in message
    assert f"put it at {output}" in message
    assert part.read_bytes() == CONTENT[:300_000]
    assert not output.exists()
    server.die_after = []
    fetch(server.url, output, sha256=SUM)
    assert server.asked[-1] == "bytes=300000-"


def test_a_partial_file_of_unknown_version_needs_a_checksum(server, output, part):
    part.write_bytes(b"another file")
    fetch(server.url, output)
    assert server.asked == [None] and output.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("text.txt", b"\n<!DOCTYPE html><p>Sign in</p>", r"a web page \(a login\?\)"),
        ("text.txt", b"\xef\xbb\xbf<!-- a --><html><p>Sign in</p>", r"a web page \(a login\?\)"),
        ("text.txt", b"", "it is empty"),
        ("a.tgz", b"plain text", "it is not a .tgz file"),
        (
            "a.tgz",
            WHOLE[:3000] + gzip.compress(CONTENT[9:], mtime=0)[3000:],
            r"damaged .tgz \(CRC check",
        ),
        ("a.gz", WHOLE[:3000], r"damaged .gz \(Compressed file ended before"),
        ("a.zip", b"PK" + CONTENT[:99], r"damaged .zip \(File is not a zip file"),
    ],
    ids=["page", "page after a comment", "empty", "text", "spliced", "cut", "no zip"],
)
def test_another_file_is_not_recorded(server, output, tmp_path, name, content, problem):
    server.content = content
    with pytest.raises(ChecksumError, match=problem):
        fetch(server.url, output.with_name(name), ledger=tmp_path / "sums")
    assert not (tmp_path / "sums").exists() and not output.with_name(name).exists()


@pytest.mark.parametrize("name", ["a.gz", "a.zip"])
def test_a_decompression_bomb_is_not_recorded(server, output, tmp_path, monkeypatch, name):
    monkeypatch.setattr(archives, "SMALLEST_LIMIT", 10**6)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a", bytes(10**7))
    server.content = packed.getvalue() if name == "a.zip" else gzip.compress(bytes(10**7))
    with pytest.raises(ChecksumError, match="it unpacks to more than"):
        fetch(server.url, output.with_name(name), ledger=tmp_path / "sums")
    assert not (tmp_path / "sums").exists()


def test_a_whole_archive_is_recorded(server, output, tmp_path):
    server.headers = {"Content-Encoding": "x-gzip"}  # so do some servers for each .tgz
    server.content = WHOLE
    assert "it was recorded" in fetch(
        server.url, output.with_name("a.tgz"), ledger=tmp_path / "sums"
    )


def test_a_download_follows_no_link(server, output, part, tmp_path):
    (tmp_path / "victim").write_text("precious")
    part.symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"file\.bin\.part is a symbolic link"):
        fetch(server.url, output, sha256=SUM)
    assert (tmp_path / "victim").read_text() == "precious"


def test_the_server_is_not_told_what_another_file_holds(server, output, part, tmp_path):
    (tmp_path / "victim").write_text('"a secret"')
    part.write_bytes(CONTENT[:9])
    part.with_name("file.bin.part.version").symlink_to(tmp_path / "victim")
    fetch(server.url, output)
    assert server.asked == [None]
    assert (tmp_path / "victim").read_text() == '"a secret"'


def test_an_answer_that_may_be_cut_off_is_not_recorded(server, output, tmp_path):
    server.lengths = False
    with pytest.raises(ChecksumError, match="did not state its length"):
        fetch(server.url, output, ledger=tmp_path / "sums")
    output.with_name("file.bin.part").unlink()
    fetch(server.url, output, ledger=tmp_path / "sums", size=len(CONTENT))


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("Content-Encoding", "gzip", "sends the file in the encoding 'gzip'"),
        ("Content-Length", "many", "states a length of 'many'"),
        ("Content-Length", "-5", "states a length of '-5'"),
    ],
)
def test_an_answer_in_another_form_than_the_file_is_refused(
    server, output, part, name, value, problem
):
    server.lengths = name != "Content-Length"
    server.headers = {name: value}
    with pytest.raises(UserError, match=f"file.bin: the server {problem}"):
        fetch(server.url, output)
    assert not output.exists() and not part.exists()


@pytest.mark.parametrize("lengths", [True, False])
def test_a_server_that_sends_too_much_is_stopped(server, output, part, lengths):
    server.lengths = lengths
    with pytest.raises(
        UserError, match=r"but the file should have 1,000|more than the 1,000 bytes"
    ):
        fetch(server.url, output, size=1000, sha256=SUM)
    assert not part.exists() or part.stat().st_size <= 1000


def test_a_server_without_ranges_sends_all_again(server, output, part):
    server.ranges = False
    part.write_bytes(b"something else")
    fetch(server.url, output, sha256=SUM)
    assert server.asked == ["bytes=14-"]


def test_a_partial_file_that_is_already_complete_is_accepted(server, output, part):
    part.write_bytes(CONTENT)
    fetch(server.url, output, sha256=SUM)
    assert output.read_bytes() == CONTENT


def test_a_partial_file_longer_than_the_file_is_discarded(server, output, part):
    part.write_bytes(CONTENT + b"more")
    fetch(server.url, output, sha256=SUM)
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_part_of_another_file_is_detected_by_its_checksum(server, output, part):
    part.write_bytes(b"x" * 1000)
    with pytest.raises(ChecksumError, match=f"should be {SUM}"):
        fetch(server.url, output, sha256=SUM)
    assert not output.exists()
    assert part.stat().st_size == len(CONTENT)


@pytest.mark.parametrize(("statuses", "requests"), [([503, 429], 3), ([], 1)])
def test_a_busy_server_is_retried(server, output, statuses, requests):
    server.statuses = statuses
    fetch(server.url, output, sha256=SUM)
    assert len(server.asked) == requests


def test_a_deleted_file_is_not_requested_again(server, output):
    server.statuses = [404]
    with pytest.raises(UserError, match="the server answers 404 Not Found") as refused:
        fetch(server.url, output)
    assert f"from {server.url} and put it at {output}" in str(refused.value)
    assert len(server.asked) == 1
    assert list(output.parent.iterdir()) == []


def test_without_a_network_the_error_says_which_file_to_put_where(output):
    url = "http://127.0.0.1:9/file.bin"
    with pytest.raises(UserError, match="no connection") as refused:
        fetch(url, output)
    assert f"from {url} and put it at {output}" in str(refused.value)


def test_a_wrong_size_is_refused(server, output):
    with pytest.raises(ChecksumError, match=r"has 700,001 bytes but should have 700,002"):
        fetch(server.url, output, size=len(CONTENT) + 1)
    assert not output.exists()


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_copy_is_fetched(tmp_path, output, form):
    copy = tmp_path / "my copy"
    copy.write_bytes(CONTENT)
    fetch(form.format(copy).replace("my copy", "my%20copy" if "://" in form else "my copy"), output)
    assert output.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("url", "message"),
    [("ftp://host/file", "expected http://"), ("nowhere.bin", "nowhere.bin: no such file")],
)
def test_urls_that_cannot_be_fetched_are_refused(output, url, message):
    with pytest.raises(UserError, match=message):
        fetch(url, output)


def test_a_file_that_another_process_downloads_is_refused(server, output, part):
    hold = f"import fcntl; file = open({str(part)!r}, 'ab'); fcntl.lockf(file, fcntl.LOCK_EX)"
    words = [sys.executable, "-c", f"{hold}; print(); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match="another process is downloading it"):
            fetch(server.url, output)
        other.communicate(b"\n")
    assert part.exists()


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
    with pytest.raises(ChecksumError, match=f"its sha256 is {new} but was {SUM} when") as caught:
        fetch(server.url, output, ledger=ledger)
    assert f"If the earlier file was the wrong one, delete its line in {ledger}" in str(
        caught.value
    )
    assert not output.exists()


def test_a_published_md5_is_accepted(server, output):
    md5 = hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(ChecksumError, match=f"its md5 is {md5} but should be {'0' * 32}"):
        fetch(server.url, output, md5="0" * 32)
    assert not output.exists()
    assert "its md5 is the published one" in fetch(server.url, output, md5=md5)


def test_a_damaged_ledger_is_named(server, output):
    ledger = output.parent / "checksums.txt"
    output.parent.mkdir()
    ledger.write_text(f"{SUM}  a\nnonsense\n")
    with pytest.raises(ChecksumError, match=r"checksums.txt:2: expected a sha256"):
        fetch(server.url, output, ledger=ledger)


def command(*arguments: object) -> tuple[int, str]:
    from typer.testing import CliRunner

    words = [str(argument) for argument in arguments]
    result = CliRunner().invoke(app, words)
    return result.exit_code, result.output


def corpus_of(server, output, published: str):
    """Write a corpus.yaml with one file."""
    output.parent.mkdir(exist_ok=True)
    file = output.with_name("corpus.yaml")
    known = f"{{url: '{server.url}', sha256: {published}, source: here}}"
    file.write_text(f"files:\n  {output.name}: {known}\n")
    return file


def test_the_command_fetches_a_file(server, output):
    code, said = command("data", "fetch", corpus_of(server, output, SUM), output.parent)
    assert (code, output.read_bytes()) == (0, CONTENT)
    assert "fetched, its sha256 is the published one" in said


@pytest.mark.parametrize(
    ("published", "message"),
    [("12ab", "String should match pattern"), (OTHER, f"should be {OTHER}")],
)
def test_wrong_checksums_end_with_exit_code_2(server, output, published, message):
    code, said = command("data", "fetch", corpus_of(server, output, published), output.parent)
    assert code == 2
    assert message in said
    assert not output.exists()
