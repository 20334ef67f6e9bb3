"""Mixtape's frequent classes need a dictionary that is sorted by count."""

import pytest
from fairseq.data import Dictionary

from highrank_plugins.models.head_from_options import require_sorted_by_count
from tests.models.small import build

PADDING = [("madeupword0000", 0), ("madeupword0001", 0)]


def dictionary(words):
    """Return a dictionary of words with counts; a number is the count of the next word."""
    made = Dictionary()
    for i, word in enumerate(words):
        made.add_symbol(*(word if isinstance(word, tuple) else (f"word{i}", word)))
    return made


@pytest.mark.parametrize(
    "words",
    [[9, 5, 5, 1, *PADDING], [3, *PADDING], [*PADDING], [9, 5, *PADDING, ("<lang:de>", 1)]],
    ids=str,
)
def test_sorted_counts_pass(words):
    """The last symbol is a task's, which needs no count."""
    require_sorted_by_count(dictionary(words), "it matters")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([9, 5, 7, 1], r"line 3 \('word2'\) has 7, .*, but it matters.*sort"),
        # reversed: named at the first word after its padding
        ([*PADDING[::-1], ("the", 3), ("a", 9)], r"line 3 \('the'\) has 3, the line before 0"),
        ([PADDING[0], ("the", 1), ("a", 1)], r"line 2 \('the'\) has 1"),
        # padding among the words does not end the check, and only that of count 0 is left out
        ([9, 5, *PADDING, ("late", 7)], r"line 5 \('late'\) has 7, the line before 0"),
        ([9, 5, ("madeupword0000", 7)], r"line 3 \('madeupword0000'\) has 7"),
        ([1, 1, 1], r"(?s)all 3 counts are 1.*[Rr]ecount"),
    ],
    ids=str,
)
def test_other_orders_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        require_sorted_by_count(dictionary(words), "it matters")


@pytest.fixture
def unsorted_data(mt_data, tmp_path):
    for file in mt_data.iterdir():
        (tmp_path / file.name).symlink_to(file)
    lines = (mt_data / "dict.de.txt").read_text().splitlines(keepends=True)
    lines[0], lines[20] = lines[20], lines[0]
    (tmp_path / "dict.de.txt").unlink()
    (tmp_path / "dict.de.txt").write_text("".join(lines))
    return tmp_path


def test_only_mixtape_with_frequent_classes_needs_sorted_words(unsorted_data):
    build(unsorted_data, "transformer_mos_tiny")
    build(unsorted_data, "transformer_mixtape_tiny", "--head-frequent-ratio", "0")
    with pytest.raises(ValueError, match=r"not sorted by count: line 2.*--head-frequent-ratio 0"):
        build(unsorted_data, "transformer_mixtape_tiny")
