"""Streams hold the text exactly; chunks cover them; lengths are drawn as in the paper."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from highrank_plugins.common.user_error import UserError
from highrank_plugins.tasks.bptt_language_modeling import check_shares
from highrank_plugins.tasks.streams import Chunk, SplitTokens, Streams, chunk_plan

DICTIONARY = Dictionary()
PAD, EOS = DICTIONARY.pad(), DICTIONARY.eos()


def text(total):
    """Return the tokens 10, 11, …, all different."""
    return SplitTokens(torch.arange(10, 10 + total), "train")


def streams(total, count, shard=0, num_shards=1):
    return Streams(text(total), DICTIONARY, count, shard, num_shards, bptt=4)


def everything(parts, lengths):
    """Return source and target: chunks side by side, processes below each other."""
    chunks = [part[chunk] for part in parts for chunk in lengths]
    per_part = len(lengths)
    rows = []
    for i in range(len(parts)):
        batches = chunks[i * per_part : (i + 1) * per_part]
        source = torch.cat([b["net_input"]["src_tokens"] for b in batches], dim=1)
        rows.append((source, torch.cat([b["target"] for b in batches], dim=1)))
    return (torch.cat(both) for both in zip(*rows, strict=True))


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_every_token_is_predicted_once_from_the_one_before_it(total, count, num_shards, seed):
    if total < count:
        return
    parts = [streams(total, count, shard, num_shards) for shard in range(num_shards)]
    plan = chunk_plan(len(parts[0]), 4, np.random.RandomState(seed))
    source, target = everything(parts, plan)
    pairs = list(zip(source[target != PAD].tolist(), target[target != PAD].tolist(), strict=True))
    corpus = text(total).tokens.tolist()
    assert sorted(pairs) == sorted(zip([EOS, *corpus[:-1]], corpus, strict=True))
    # row by row, they are the text itself
    assert [t for _, t in pairs] == corpus
    predicted = sum(part[chunk]["ntokens"] for part in parts for chunk in plan)
    assert predicted == total


def test_streams_equal_those_written_by_hand():
    whole = streams(8, 3)  # 10 … 17 in 3 streams
    batch = whole[Chunk(0, 3, 3)]
    assert batch["net_input"]["src_tokens"].tolist() == [[EOS, 10, 11], [12, 13, 14], [15, 16, PAD]]
    assert batch["target"].tolist() == [[10, 11, 12], [13, 14, 15], [16, 17, PAD]]
    assert (batch["ntokens"], batch["nsentences"]) == (8, 3)
    assert batch["target"].is_contiguous() and batch["net_input"]["src_tokens"].is_contiguous()


@pytest.mark.parametrize("count, processes", [(60, 8), (7, 3), (6, 3), (1, 2)])
def test_uneven_shares_weigh_as_many_streams_as_they_have(count, processes):
    parts = [streams(500, count, shard, processes)[Chunk(0, 4, 4)] for shard in range(processes)]
    sizes = [part["nsentences"] for part in parts]
    assert sum(sizes) == count and sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] < 2
    assert [p["tokens_per_process"] for p in parts] == [pytest.approx(4 * n) for n in sizes]
    assert [p["ntokens"] for p in parts] == [4 * n for n in sizes]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((12, 4, 3), None),
        ((60, 8, 8), None),
        ((60, 60, 1), None),
        ((60, 7, 8), "--streams 60 of 8 processes: give .* --batch-size 8, .* is 7"),
        ((2, 1, 3), "--streams 2 of 3 processes: give each one at least"),
    ],
)
def test_batch_size_is_the_largest_share(given, found):
    with nullcontext() if found is None else pytest.raises(UserError, match=found):
        check_shares(*given)


def test_more_streams_than_tokens_are_refused():
    with pytest.raises(ValueError, match="train: 3 tokens cannot fill 4 streams"):
        streams(3, 4)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 99))
def test_chunks_cover_all_positions_once(total, bptt, seed):
    for rng in (None, np.random.RandomState(seed)):
        plan = chunk_plan(total, bptt, rng)
        covered = [p for c in plan for p in range(c.start, c.start + c.length)]
        assert covered == list(range(total))


def test_the_last_chunk_scales_the_learning_rate_by_its_drawn_length():
    *_, end = chunk_plan(10, 4)
    assert end == Chunk(8, 2, 4)
    assert streams(10, 1)[Chunk(8, 2, 6)]["lr_scale"] == 1.5


def test_lengths_have_the_distribution_of_the_paper():
    """One draw in 20 is around half the length; none is below 5 or above the bound."""
    drawn = [c.drawn for c in chunk_plan(2_000_000, 70, np.random.RandomState(1))]
    short = np.asarray([x for x in drawn if x < 52])
    long = np.asarray([x for x in drawn if x >= 52])
    assert len(short) / len(drawn) == pytest.approx(0.05, abs=0.005)
    # int() cuts half a token off
    assert long.mean() == pytest.approx(69.5, abs=0.1)
    assert long.std() == pytest.approx(5, abs=0.1)
    assert short.mean() == pytest.approx(34.5, abs=0.3)
    bounded = [c.drawn for c in chunk_plan(20_000, 70, np.random.RandomState(1), longest=72)]
    assert max(bounded) == 72
    assert min(c.drawn for c in chunk_plan(9_000, 6, np.random.RandomState(1))) == 5
