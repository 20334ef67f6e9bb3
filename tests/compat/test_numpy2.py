"""Test compat/numpy2.py."""

import importlib
import inspect

import numpy as np
import pytest
import torch
from fairseq.data import bucket_pad_length_dataset, data_utils, token_block_dataset

from highrank_plugins.compat import numpy2

SENTENCES = [torch.tensor([4, 5, 2]), torch.tensor([6, 2])]


def blocks():
    return token_block_dataset.TokenBlockDataset(
        SENTENCES, [3, 2], block_size=None, pad=1, eos=2, break_mode="eos"
    )


def test_the_break_mode_eos_works():
    assert [block.tolist() for block in blocks()] == [[4, 5, 2], [6, 2]]


def test_stock_needs_numpys_module_compat(monkeypatch):
    monkeypatch.delattr(np, "compat")
    with pytest.raises(AttributeError, match="compat"):
        blocks()
    importlib.reload(numpy2)
    assert len(blocks()) == 2


def test_buckets_equal_those_of_fairseq():
    sizes = [1, 1, 2, 3, 5, 8, 13, 21]
    buckets = bucket_pad_length_dataset.get_buckets(sizes, 3)
    assert buckets.tolist() == data_utils.get_buckets(sizes, 3).tolist() == [2, 5, 21]


def test_stock_uses_the_old_keyword():
    source = inspect.getsource(data_utils)
    assert 'interpolation="lower"' in source, "fairseq is repaired: get_buckets can go"
    with pytest.raises(TypeError, match="interpolation"):
        np.percentile([1, 2], 50, interpolation="lower")
