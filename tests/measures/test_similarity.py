"""Cosines against people's scores; files of benchmarks as they come."""

import math

import pytest
import torch

from highrank_plugins.measures.word_similarity import WordPair, read_word_pairs, word_similarity

# angles of 0, 10, 25, 45 and 90 degrees: the cosine with "a" falls
WORDS = {word: row for row, word in enumerate("abcde")}
ANGLES = torch.tensor([0.0, 10, 25, 45, 90], dtype=torch.float64).deg2rad()
LENGTHS = torch.tensor([[1.0], [7.0], [0.1], [3.0], [2.0]])
VECTORS = LENGTHS * torch.stack([ANGLES.cos(), ANGLES.sin()], 1)


def pairs(*scores):
    return [("a", word, score) for word, score in zip([*WORDS][1:], scores, strict=False)]


def test_the_order_of_cosines_decides():
    assert word_similarity(VECTORS, WORDS, pairs(9, 8, 2, 1)) == (pytest.approx(1.0), 4, 0)
    assert word_similarity(VECTORS, WORDS, pairs(1, 2, 8, 9)).spearman == pytest.approx(-1.0)
    # ranks 4 3 2 1 against 4 2 3 1: 1 − 6 · 2 / (4 · 15)
    assert word_similarity(VECTORS, WORDS, pairs(9, 2, 8, 1)).spearman == pytest.approx(0.8)


def test_ties_have_the_mean_of_their_ranks():
    # 4 3 2 1 against 4 2.5 2.5 1: Pearson's r of these
    assert word_similarity(VECTORS, WORDS, pairs(9, 5, 5, 1)).spearman == pytest.approx(
        4.5 / math.sqrt(5 * 4.5)
    )


def test_words_are_lowercased_and_missing_ones_are_counted():
    found = word_similarity(
        VECTORS, WORDS, [("A", "B", 9), ("a", "C", 8), ("a", "z", 1), ("y", "z", 2)]
    )
    assert found == (pytest.approx(1.0), 2, 2)
    rows = {"e": 4, "d": 3, "c": 2, "a": 0}
    assert word_similarity(VECTORS, rows, pairs(9, 8, 2, 1)) == (pytest.approx(1.0), 3, 1)


@pytest.mark.parametrize("chosen", [[], pairs(1), pairs(3, 3, 3), [("a", "b", 1), ("a", "b", 2)]])
def test_equal_ranks_have_no_correlation(chosen):
    assert word_similarity(VECTORS, WORDS, chosen) == (None, len(chosen), 0)


def test_files_of_every_layout_are_read(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_bytes(b"car\tautomobile\t3.92\r\nsun sunlight 50.0\n\nkitchen toilet 2.5\t\n")
    assert read_word_pairs(path) == [
        WordPair("car", "automobile", 3.92),
        WordPair("sun", "sunlight", 50.0),
        WordPair("kitchen", "toilet", 2.5),
    ]
