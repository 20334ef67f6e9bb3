"""Test compat/numpy2.py."""

import torch
from fairseq.data import bucket_pad_length_dataset, data_utils, token_block_dataset


def test_the_break_mode_eos_works():
    sentences = [torch.tensor([4, 5, 2]), torch.tensor([6, 2])]
    blocks = token_block_dataset.TokenBlockDataset(
        sentences, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos"
    )
    assert [block.tolist() for block in blocks] == [[4, 5, 2], [6, 2]]


def test_buckets_equal_those_of_fairseq():
    sizes = [1, 1, 2, 3, 5, 8, 13, 21]
    buckets = bucket_pad_length_dataset.get_buckets(sizes, 3)
    assert buckets.tolist() == data_utils.get_buckets(sizes, 3).tolist() == [2, 5, 21]
