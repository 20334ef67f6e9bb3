"""Cosines against people's scores; files of benchmarks as they come."""

import math

import pytest
import torch

from highrank_plugins.measures.word_similarity import read_word_pairs, word_similarity

# angles of 0, 10, 25, 45 and 90 degrees: the cosine with "a" falls
WORDS = {word: row for row, word in enumerate("abcde")}
ANGLES = torch.tensor([0.0, 10, 25, 45, 90], dtype=torch.float64).deg2rad()
LENGTHS = torch.tensor([[1.0], [7.0], [0.1], [3.0], [2.0]])
VECTORS = LENGTHS * torch.stack([ANGLES.cos(), ANGLES.sin()], 1)


def pairs(*scores):
    return [("a", word, score) for word, score in zip([*WORDS][1:], scores, strict=False)]


def test_spearman_of_cosines_and_scores():
    for scores, expected in (
        ((9, 8, 2, 1), 1), ((1, 2, 8, 9), -1),
        # ranks 4 3 2 1 against 4 2 3 1: 1 − 6 · 2 / (4 · 15)
        ((9, 2, 8, 1), 0.8),
        # ties have the mean of their ranks: Pearson's r of 4 3 2 1 and 4 2.5 2.5 1
        ((9, 5, 5, 1), 4.5 / math.sqrt(5 * 4.5)),
    ):  # fmt: skip
        found = word_similarity(VECTORS, WORDS, pairs(*scores))
        assert found == (pytest.approx(expected), 4, 0), scores
    # words are lower-cased, and missing ones are counted
    some = [("A", "B", 9), ("a", "C", 8), ("a", "z", 1), ("y", "z", 2)]
    assert word_similarity(VECTORS, WORDS, some) == (pytest.approx(1.0), 2, 2)
    rows = {"e": 4, "d": 3, "c": 2, "a": 0}
    assert word_similarity(VECTORS, rows, pairs(9, 8, 2, 1)) == (pytest.approx(1.0), 3, 1)
    for chosen in ([], pairs(1), pairs(3, 3, 3), [("a", "b", 1), ("a", "b", 2)]):  # equal ranks
        assert word_similarity(VECTORS, WORDS, chosen) == (None, len(chosen), 0)


def test_files_of_every_layout_are_read(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_bytes(b"car\tautomobile\t3.92\r\nsun sunlight 50.0\n\nkitchen toilet 2.5\t\n")
    assert read_word_pairs(path) == [
        ("car", "automobile", 3.92), ("sun", "sunlight", 50.0), ("kitchen", "toilet", 2.5),
    ]  # fmt: skip
