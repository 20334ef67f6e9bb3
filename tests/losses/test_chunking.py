"""Test losses/chunking.py: the number of tokens in a chunk."""

import pytest
import torch

from highrank_plugins.losses.chunking import tokens_within

MIB = 2**20


def features(tokens, dtype=torch.float32):
    return torch.empty(tokens, 1, dtype=dtype, device="cpu")


@pytest.mark.parametrize(
    ("matrix", "budget"),
    [
        (0, 31 * MIB),
        (1_000_000, 31 * MIB),
        (10_000 * 280, 4.5 * 4 * 10_000 * 280),  # Penn Treebank's: between the bounds
        (33_278 * 300, 64 * MIB),
    ],
)
def test_the_default_grows_with_the_vocabulary_matrix(matrix, budget):
    floats = 150_000
    tokens = tokens_within(features(10_000), floats, None, matrix=matrix)
    assert tokens == budget // (4 * floats)


def test_the_default_is_at_most_half_of_the_tokens_or_what_the_caller_says():
    assert tokens_within(features(700), 10_000, None) == 350
    assert tokens_within(features(700), 10_000, None, most=700) == 700
    assert tokens_within(features(700), 10_000, None, most=200) == 350
    assert tokens_within(features(20), 100_000, None) == 16  # at least


def test_chunks_stay_within_the_budget():
    assert tokens_within(features(700), 1000, 40_000) == 10
    assert tokens_within(features(700, torch.float64), 1000, 40_000) == 5
    assert tokens_within(features(700, torch.bfloat16), 1000, 40_000) == 10  # sums are wide
    with pytest.raises(ValueError, match=r"3999 bytes cannot hold one token, which takes 4000"):
        tokens_within(features(700), 1000, 3999)
