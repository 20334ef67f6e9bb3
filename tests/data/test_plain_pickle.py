"""Pickles of plain values are read; nothing that a hostile one names is run."""

import os
import pickle
import struct
from fractions import Fraction

import pytest

from highrank_plugins.data.dialogue import load_plain

VALUES = [
    {"train": [("A", "hello", ["act", [0.5, -1, None, True, 2**70]])], "ü": ()},
    ["x" * 70_000, list(range(300))],
    "word",
]
MEMORY = 2**60


@pytest.fixture
def path(tmp_path):
    return tmp_path / "corpus.p"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_plain_values_are_read_back(value, protocol, path):
    path.write_bytes(pickle.dumps(value, protocol))
    assert load_plain(path) == value


def test_text_of_python_2_is_read_as_utf_8(path):
    # as cPickle of Python 2 writes {'k': u'é', 's': 'é'} with protocol 2, and ['a'] with 0
    text = b"U\x01kq\x02X\x02\x00\x00\x00\xc3\xa9q\x03U\x01sU\x02\xc3\xa9u."
    path.write_bytes(b"\x80\x02}q\x01(" + text)
    assert load_plain(path) == {"k": "é", "s": "é"}
    path.write_bytes(b"(lp1\nS'a'\np2\na.")
    assert load_plain(path) == ["a"]


class Hostile:
    """Create a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_hostile_pickles_run_nothing(protocol, path, tmp_path):
    marker = tmp_path / "marker"
    path.write_bytes(pickle.dumps({"train": [Hostile(marker)]}, protocol))
    with pytest.raises(ValueError, match=rf"{path} is refused.*GLOBAL.*source that you trust"):
        load_plain(path)
    assert not marker.exists()
    pickle.loads(path.read_bytes())
    assert marker.exists()  # it was hostile indeed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle at all",
        pickle.dumps(VALUES[0])[:-20],
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",
        b"Pmodule\n.",
        b"\x80\x02\x85R.",
        b"\x80\x02]q\x01r" + struct.pack("<I", 2**31 - 1) + b".",
        b"p9999999999\n.",
        b"\x80\x05\x96" + struct.pack("<Q", MEMORY) + b".",
        b"\x80\x04\x8d" + struct.pack("<Q", MEMORY) + b".",
        b"\x80\x02X\xff\xff\xff\x7f.",
        b"\x80\x02q\x01.",
        b"\x80\x02h\x07.",
        b"\x80\x02u.",
        pickle.dumps({1, 2}, 4),
        pickle.dumps(b"bytes", 4),
        pickle.dumps(Fraction(1, 3)),
        b"\x80\x02U\x01\xff.",
    ],
    ids=range(20),
)
def test_other_pickles_are_refused(content, path):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path} is refused"):
        load_plain(path)
