"""Test compat/dropped_batches.py."""

import numpy as np
import pytest
from fairseq.data import data_utils

LENGTHS = np.random.RandomState(1).randint(1, 30, size=200)


def batches(count: int, multiple: int, vectorised: bool = True, **limits):
    order = np.argsort(LENGTHS[:count], kind="stable")
    return data_utils.batch_by_size(
        order,
        num_tokens_fn=lambda i: LENGTHS[i],
        num_tokens_vec=LENGTHS[order] if vectorised else None,
        required_batch_size_multiple=multiple,
        **(limits or {"max_tokens": 200}),
    )


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize("limits", [{}, {"max_sentences": 20}, {"max_tokens": 64}], ids=str)
def test_no_sentence_is_lost(multiple, vectorised, limits):
    for count in range(60):
        got = batches(count, multiple, vectorised, **limits)
        assert sorted(i for batch in got for i in batch) == list(range(count))
        assert all(len(batch) for batch in got)


def test_full_batches_equal_those_of_fairseq(stock):
    got = data_utils.batch_by_size(  # of any iterable
        iter([0, 1, 2]), num_tokens_fn=lambda i: LENGTHS[i], required_batch_size_multiple=8
    )
    assert [batch.tolist() for batch in got] == [[0, 1, 2]]
    ours = batches(101, 8)
    stock(data_utils, "batch_by_size")
    theirs = batches(101, 8)
    assert len(theirs) == len(ours) - 1
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=False))
