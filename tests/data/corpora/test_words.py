"""Words of a text: what separates them, what is refused, how they are counted."""

import gzip

import pytest

from highrank_plugins.common.text_lines import TextError
from highrank_plugins.data.corpora.word_corpora import WordCounts, read_words


def test_lines_are_split_into_words(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(" the  cat \n\n \nÜber\u00a0uns\t\nlast".encode())
    assert list(read_words(path)) == [["the", "cat"], [], [], ["Über", "uns"], ["last"]]
    assert list(read_words(path, lower=True))[3] == ["über", "uns"]


def test_compressed_text_is_read(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a b\n"))
    assert list(read_words(path)) == [["a", "b"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.txt: the file is empty"),
        (b"a\nb \xf6\n", "a.txt:2:3: byte 0xf6 is not UTF-8"),
        (b"a </s>\n", "a.txt:1:3: the text has the word </s>"),
        (b"a\n<s> b\n", "a.txt:2:1: the text has the word <s>"),
        (b"a\r\n", "a.txt:1:2: carriage return"),
        (b"a\nmadeupword0000\n", "a.txt:2:1: the text has the word madeupword0000"),
        (b"\n \n", "a.txt: no line has a word"),
        (b"<pad>\n", "a.txt:1:1: the text has the word <pad>"),
    ],
)
def test_invalid_text_is_refused(tmp_path, content, message):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(TextError, match=message):
        list(read_words(path))


def test_damaged_text_is_refused(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a b\n" * 1000)[:-9])
    with pytest.raises(TextError, match=r"a\.txt\.gz:\d+: damaged"):
        list(read_words(path))


def test_words_and_lines_are_counted():
    counts = WordCounts().add([["b", "a", "<unk>"], [], ["a", "c", "<unk>", "<unk>"]])
    assert (counts.lines, counts.tokens, counts.types) == (3, 10, 5)
    assert counts.most_frequent(10) == ["a", "b", "c"]
    assert counts.most_frequent(2) == ["a", "b"]
    assert counts.report("x") == "x: 3 lines, 10 tokens with </s>, 5 types, 30.00% <unk>"
