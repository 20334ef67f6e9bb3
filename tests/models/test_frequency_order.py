"""Mixtape's frequent classes need a dictionary that is sorted by count."""

import pytest
from fairseq.data import Dictionary

from highrank_plugins.models.head_from_options import require_sorted_by_count
from tests.models.small import build


def dictionary(counts, padding=0):
    made = Dictionary()
    for i, count in enumerate(counts):
        made.add_symbol(f"word{i}", count)
    for i in range(padding):
        made.add_symbol(f"madeupword{i:04d}", 0)
    return made


@pytest.mark.parametrize("counts", [[9, 5, 5, 1], [3], []], ids=str)
def test_sorted_counts_pass(counts):
    require_sorted_by_count(dictionary(counts, padding=2), "it matters")


def test_symbols_that_a_task_adds_need_no_count():
    made = dictionary([9, 5], padding=2)
    made.add_symbol("<lang:de>")
    require_sorted_by_count(made, "it matters")


def test_a_rising_count_is_named_with_its_line():
    with pytest.raises(ValueError, match=r"line 3 \('word2'\) has 7, .*, but it matters.*sort"):
        require_sorted_by_count(dictionary([9, 5, 7, 1]), "it matters")


def test_a_reversed_dictionary_is_named_at_the_first_word_after_its_padding():
    made = Dictionary()
    for name, count in [("madeupword0001", 0), ("madeupword0000", 0), ("the", 3), ("a", 9)]:
        made.add_symbol(name, count)
    with pytest.raises(ValueError, match=r"line 3 \('the'\) has 3, the line before 0.*sort"):
        require_sorted_by_count(made, "it matters")


def test_padding_among_the_words_does_not_end_the_check():
    made = dictionary([9, 5], padding=2)
    made.add_symbol("late", 7)
    with pytest.raises(ValueError, match=r"line 5 \('late'\) has 7, the line before 0"):
        require_sorted_by_count(made, "it matters")


def test_a_reversed_dictionary_of_constant_counts_is_refused():
    made = Dictionary()
    for name, count in [("madeupword0000", 0), ("the", 1), ("a", 1)]:
        made.add_symbol(name, count)
    with pytest.raises(ValueError, match=r"line 2 \('the'\) has 1"):
        require_sorted_by_count(made, "it matters")


def test_only_padding_of_count_0_is_left_out():
    made = dictionary([9, 5])
    made.add_symbol("madeupword0000", 7)
    with pytest.raises(ValueError, match=r"line 3 \('madeupword0000'\) has 7"):
        require_sorted_by_count(made, "it matters")


def test_constant_counts_are_refused():
    with pytest.raises(ValueError, match=r"(?s)all 3 counts are 1.*[Rr]ecount"):
        require_sorted_by_count(dictionary([1, 1, 1]), "it matters")


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
