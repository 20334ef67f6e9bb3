"""text8: parts, numbers of characters, and no </s> anywhere."""

import pytest

from highrank_plugins.common.user_error import UserError
from highrank_plugins.data.corpora import CorpusOptions, text8
from tests.data.corpora import made
from tests.data.corpora.made import OTHER, prepare


@pytest.fixture
def data(tmp_path):
    return made.text8(tmp_path / "data")


@pytest.fixture
def load(tmp_path):
    """Return a function that gives the characters of a split, as fairseq reads them."""
    from fairseq.data import Dictionary, data_utils

    def load(split):
        dictionary = Dictionary.load(str(tmp_path / "out" / "dict.txt"))
        items = data_utils.load_indexed_dataset(str(tmp_path / "out" / split), dictionary)
        numbers = [number for i in range(len(items)) for number in items[i].tolist()]
        return "".join(dictionary[number] for number in numbers).replace("_", " ")

    return load


@pytest.mark.parametrize("block", [1 << 20, 7])
def test_the_three_parts_make_up_the_text(tmp_path, data, load, monkeypatch, block):
    monkeypatch.setattr(text8, "_BLOCK", block)
    said = prepare("text8", data, tmp_path / "out")
    whole = (data / "text8").read_text()
    parts = {"train": whole[:3600], "valid": whole[3600:3800], "test": whole[3800:]}
    assert {split: load(split) for split in parts} == parts
    assert said[0].startswith("train: 3,600 characters without </s>")


def test_the_dictionary_is_sorted_by_count(tmp_path, data):
    prepare("text8", data, tmp_path / "out")
    rows = [row.split() for row in (tmp_path / "out" / "dict.txt").read_text().splitlines()]
    train = (data / "text8").read_text()[:3600].replace(" ", "_")
    assert {word: int(count) for word, count in rows} == {c: train.count(c) for c in set(train)}
    assert rows == sorted(rows, key=lambda row: (-int(row[1]), row[0]))
    assert rows[0][0] == "_"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("abc\n" * 20, OTHER, "has the byte 0x0a, but text8 has only a to z"),
        ("ab" * 40 + "zzzz", OTHER, "test has 'z', which does not occur in train"),
        ("abc", OTHER, "too short: nothing is left for valid"),
        ("abc", CorpusOptions(), "characters: expected 100000000, found 3"),
        ("abc", CorpusOptions(other_text=True, vocab_size=5), "does not support --vocab-size"),
        (None, OTHER, r"text8 does not exist: put the file text8 of text8\.zi"),
    ],
)
def test_invalid_text_and_options_are_refused(tmp_path, text, options, message):
    if text is not None:
        (tmp_path / "text8").write_text(text)
    with pytest.raises(UserError, match=message):
        prepare("text8", tmp_path, tmp_path / "out", options)
