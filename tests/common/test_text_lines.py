"""Malformed parallel text: each fault with file, line and column; good text passes untouched."""

import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from highrank_plugins.common.text_lines import NO_EMPTY_LINES, TextError, check_texts

GOOD = "Ein Satz.\nNoch ein Satz – länger.\n".encode()


@pytest.fixture
def files(tmp_path):
    source, target = tmp_path / "train.en", tmp_path / "train.de"
    source.write_bytes(b"A sentence.\nOne more.\n")
    target.write_bytes(GOOD)
    return [source, target]


def problem(files) -> str:
    with pytest.raises(TextError) as caught:
        check_texts(files, NO_EMPTY_LINES)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (b"gut\nsch\xf6n\n", "2:4", "byte 0xf6 is not UTF-8"),
        ("für schön ".encode() + b"\xff\nb\n", "1:11", "byte 0xff is not UTF-8"),
        (b"a\n\n", "2:1", "empty line"),
        (b"a\n \t\xc2\xa0\n", "2:1", "empty line"),
        (b"a\0b\nc\n", "1:2", "NUL"),
        (b"\xef\xbb\xbfa\nb\n", "1:1", "byte order mark"),
        (b"a\n\xef\xbb\xbfb\n", "2:1", "byte order mark"),
        (b"a\r\nc\r\n", "1:2", "carriage return"),
        ("ü\rb\nc\n".encode(), "1:2", "carriage return"),
        (b"a\n" + b"w " * 20_000 + b"\n", "2:1", "20,000 words, more than the 1,000"),
    ],
)
def test_a_bad_line_is_named(files, text, place, message):
    files[1].write_bytes(text)
    assert problem(files).startswith(f"{files[1]}:{place}: {message}")
    file = compressed(files[1], text)
    assert problem([files[0], file]).startswith(f"{file}:{place}: {message}")


def compressed(path, text: bytes):
    path = path.with_name(f"{path.name}.gz")
    path.write_bytes(gzip.compress(text))
    return path


@pytest.mark.parametrize("text", [GOOD, GOOD[:-1], "Ein\ufeffSatz.\nNoch einer.\n".encode()])
def test_good_text_is_counted(files, text):
    """The last line feed may be missing; a byte order mark within a line is a character."""
    files[1].write_bytes(text)
    assert check_texts(files, NO_EMPTY_LINES) == 2
    assert check_texts([files[0], compressed(files[1], text)], NO_EMPTY_LINES) == 2


def test_an_empty_and_a_missing_file_are_named(files):
    files[0].write_bytes(b"")
    assert problem(files) == f"{files[0]}: the file is empty"
    files[1].unlink()
    assert problem(files[1:]) == f"{files[1]}: no such file; the folder has {files[0].name}"


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-6], lambda data: GOOD, lambda data: b"\0" * 9]
)
def test_damaged_compressed_text_is_named(files, damage):
    file = compressed(files[1], GOOD)
    file.write_bytes(damage(file.read_bytes()))
    assert problem([files[0], file]).startswith(f"{file}:")
    assert "damaged" in problem([file])


def test_a_line_without_a_partner_is_named(files):
    files[0].write_bytes(GOOD + b"drei\nvier\n")
    for both in (files, files[::-1]):
        assert problem(both).startswith(f"{files[0]}:3: this line has no partner: {files[1]} ends")


@given(st.lists(st.binary(max_size=8), min_size=1, max_size=6))
def test_text_passes_if_and_only_if_each_line_is_clean(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    data = b"\n".join(lines)
    path.write_bytes(data)
    if is_clean(data):
        assert check_texts([path], NO_EMPTY_LINES) == data.removesuffix(b"\n").count(b"\n") + 1
    else:
        assert re.match(r".*any\.txt:(\d+:\d+:)? .*$", problem([path]))


def is_clean(data: bytes) -> bool:
    text = data.decode("utf-8", errors="replace")
    rows = text.removesuffix("\n").split("\n")
    is_text = all(row.strip() and not row.startswith("\ufeff") for row in rows)
    return is_text and text.encode() == data and not set(text) & {"\r", "\0"}
