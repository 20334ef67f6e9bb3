"""The task carries the state, scales the rate by length, and refuses options that lose tokens."""

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from highrank_plugins.common.user_error import UserError
from highrank_plugins.tasks.bptt_language_modeling import check_shares
from highrank_plugins.tasks.streams import Chunk, SplitTokens, Streams, chunk_plan
from tests.fairseq_cli import attempt
from tests.stream_corpus import CERTAIN, binarise, write_text
from tests.tasks.built import build


def test_an_update_of_several_chunks_can_be_retried(stream_data):
    built = build(stream_data, *CERTAIN)
    chunks, optimizer = built.batches()[:3], Optimizer(lr=1.0)

    def update():
        built.task.before_update(0)
        for chunk in chunks[1:]:
            built.task.train_step(dict(chunk), built.model, built.criterion, optimizer, 0)

    built.task.train_step(dict(chunks[0]), built.model, built.criterion, optimizer, 0)
    built.task.optimizer_step(optimizer, built.model, 0)
    update()  # an overflow: no step follows
    after_first_try = built.task.training_state.states
    update()
    again = built.task.training_state.states
    assert again.keys() == after_first_try.keys()
    end = built.task.training_state.position
    assert torch.equal(again[end][0][0], after_first_try[end][0][0])
    assert len(built.task.lr_scales) == 2
    built.task.optimizer_step(optimizer, built.model, 1)
    update()  # with --amp a step follows an overflow, which changes nothing
    assert torch.equal(built.task.training_state.states[end][0][0], again[end][0][0])
    built.task.optimizer_step(optimizer, built.model, 1)
    built.task.training_state.give(dict(built.batches()[3]))
    assert list(built.task.training_state.states) == [end]


class Optimizer:
    """Record the rate of each step."""

    def __init__(self, lr):
        self.lr, self.steps = lr, []

    def get_lr(self):
        return self.lr

    def set_lr(self, lr):
        self.lr = lr

    def step(self):
        self.steps.append(self.lr)

    def backward(self, loss):
        loss.backward()


def test_the_learning_rate_is_proportional_to_the_drawn_length(stream_data):
    built = build(stream_data, "--bptt", 10)
    optimizer = Optimizer(lr=20.0)
    batches = built.batches()
    for batch in batches:
        built.task.train_step(batch, built.model, built.criterion, optimizer, 0)
        built.task.optimizer_step(optimizer, built.model, 0)
        assert optimizer.lr == 20
    lengths = [b["target"].size(1) for b in batches]
    assert len(set(lengths)) > 3
    assert optimizer.steps[:-1] == pytest.approx([20 * n / 10 for n in lengths[:-1]])
    assert optimizer.steps[-1] >= 20 * lengths[-1] / 10
    for batch in (pair := built.batches()[:2]):  # of several chunks, by the mean length
        built.task.train_step(batch, built.model, built.criterion, optimizer, 0)
    built.task.optimizer_step(optimizer, built.model, 0)
    assert optimizer.steps[-1] == pytest.approx(sum(b["target"].size(1) for b in pair))


def lengths(batches):
    return [b["target"].size(1) for b in batches]


def test_lengths_are_drawn_again_each_epoch_from_the_seed(stream_data):
    built = build(stream_data)
    one, two = lengths(built.batches(epoch=1)), lengths(built.batches(epoch=2))
    assert one != two
    assert lengths(build(stream_data).batches(epoch=2)) == two
    assert lengths(build(stream_data, "--seed", 6).batches(epoch=2)) != two
    assert lengths(built.batches(epoch=1, num_shards=2, shard_id=1, max_sentences=2)) == one
    assert {*lengths(build(stream_data, "--fixed-bptt").batches())[:-1]} == {8}
    assert max(lengths(build(stream_data, "--bptt-max-delta", 1).batches())) == 9
    whole = built.batches(max_sentences=5, required_batch_size_multiple=8)
    assert {len(b["target"]) for b in whole} == {5}
    assert sum(b["ntokens"] for b in whole) == len(built.task.dataset("train"))


def test_validation_leaves_the_training_state_alone_and_a_skipped_batch_is_an_error(stream_data):
    built = build(stream_data, *CERTAIN)
    built.model.double()
    first, second, third, *_ = built.batches()
    built.task.train_step(first, built.model, built.criterion, Optimizer(1.0), 0)
    before = built.task.training_state.states
    assert not any(t.requires_grad for state in before.values() for layer in state for t in layer)
    batches = built.batches("valid")
    total = sum(built.task.valid_step(b, built.model, built.criterion)[0] for b in batches)
    words = torch.cat([b["net_input"]["src_tokens"] for b in batches], dim=1)
    target = torch.cat([b["target"] for b in batches], dim=1)
    with torch.no_grad():  # chunks equal one long pass
        want = built.model(words, target=target, ignore_index=built.criterion.padding_idx)
    assert len(batches) > 5
    torch.testing.assert_close(total, want.loss, rtol=1e-12, atol=0)
    streams = built.task.training_streams
    # the training text can be validated on like any other
    batches = built.batches(update_epoch_batch_itr=None)
    assert built.task.training_streams is streams
    assert set(lengths(batches)[:-1]) == {8} and {len(b["target"]) for b in batches} == {1}
    assert sum(b["ntokens"] for b in batches) == len(built.task.dataset("train"))
    assert built.task.training_state.states is before
    with pytest.raises(UserError, match=r"position .* is lost.*--reset-dataloader"):
        built.task.train_step(third, built.model, built.criterion, Optimizer(1.0), 1)
    built.task.training_state.give(second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 500}, "--max-tokens 500 does not fit .* give --batch-size"),
        ({"skip_remainder_batch": True}, "--skip-remainder-batch True does not"),
        ({"grouped_shuffling": True}, "--grouped-shuffling"),
        ({"max_sentences": None}, "--batch-size is missing"),
        ({"max_sentences": 9999}, "tokens cannot fill 9999 streams"),
    ],
    ids=str,
)
def test_iterators_that_would_lose_tokens_are_refused(options, message, stream_data):
    with pytest.raises(ValueError, match=message):
        build(stream_data).batches(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 500}, "--max-tokens-valid 500 does not fit"),
        ({"max_sentences": 7}, "--batch-size-valid 7: give --eval-streams 7 instead"),
    ],
)
def test_options_of_batches_are_those_of_validation_there(options, message, stream_data):
    built = build(stream_data)
    built.batches(max_sentences=4)
    assert len(built.batches("valid", max_sentences=4)) > 5  # as --batch-size is by default
    with pytest.raises(UserError, match=message):
        built.batches("valid", **options)


def test_a_split_without_tokens_and_a_dictionary_of_another_text_are_refused(tmp_path):
    data = binarise(write_text(tmp_path), "--dataset-impl", "lazy")
    words = (data / "dict.txt").read_text().splitlines(keepends=True)
    (data / "dict.txt").write_text("".join(words[:4]))
    task = build(data, "--dataset-impl", "lazy").task
    with pytest.raises(ValueError, match=r"valid.bin has word number \d+, but dict.txt has"):
        task.load_dataset("valid")
    (data / "valid.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"valid\.bin is empty"):
        task.load_dataset("valid")


def test_another_number_of_streams_is_refused_on_resume(stream_data):
    built = build(stream_data)
    first, *_ = built.batches()
    built.task.train_step(first, built.model, built.criterion, Optimizer(1.0), 0)
    built.task.before_save()
    saved = built.task.get_checkpoint_dict()["BPTTLanguageModelingTask"]
    other = build(stream_data)
    other.batches(max_sentences=3)
    with pytest.raises(ValueError, match=r"trained on 4 streams.* is 3: make it 4"):
        other.task.set_checkpoint_dict(saved)
    # two processes of two are four again
    other.batches(max_sentences=2, num_shards=2, shard_id=1)
    other.task.set_checkpoint_dict(saved)
    (state,) = other.task.training_state.states.values()
    whole = built.task.training_state.states[first["target"].size(1)]
    assert torch.equal(state[0][0], whole[0][0][:, 2:4])


def test_the_criterion_is_refused_without_its_task(stream_data):
    words = "--task language_modeling --arch awd_lstm_lm_softmax --criterion bptt_cross_entropy"
    rest = "--optimizer adam --lr 1e-3 --batch-size 2 --tokens-per-sample 9 --no-save --cpu"
    done = attempt("train", stream_data, *words.split(), *rest.split(), "--max-update", 1)
    assert done.code == 2
    assert "needs --task bptt_language_modeling" in done.output


# -- streams hold the text exactly; chunks cover them; lengths are drawn as in the paper ----------

DICTIONARY = Dictionary()
PAD, EOS = DICTIONARY.pad(), DICTIONARY.eos()


def text(total):
    """Return the tokens 10, 11, …, all different."""
    return SplitTokens(torch.arange(10, 10 + total), "train")


def streams(total, count, shard=0, num_shards=1):
    return Streams(text(total), DICTIONARY, count, shard, num_shards, bptt=4)


def everything(parts, lengths):
    """Return source and target: chunks side by side, processes below each other."""
    found = []
    for part in parts:
        batches = [part[chunk] for chunk in lengths]
        source = torch.cat([b["net_input"]["src_tokens"] for b in batches], dim=1)
        found.append((source, torch.cat([b["target"] for b in batches], dim=1)))
    return (torch.cat(both) for both in zip(*found, strict=True))


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


@pytest.mark.parametrize("count, processes", [(60, 8), (7, 3), (6, 3), (1, 2)])
def test_uneven_shares_weigh_as_many_streams_as_they_have(count, processes):
    parts = [streams(500, count, shard, processes)[Chunk(0, 4, 4)] for shard in range(processes)]
    sizes = [part["nsentences"] for part in parts]
    assert sum(sizes) == count and sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] < 2
    assert [p["tokens_per_process"] for p in parts] == [pytest.approx(4 * n) for n in sizes]
    assert [p["ntokens"] for p in parts] == [4 * n for n in sizes]


def test_batch_size_is_the_largest_share():
    for shares in ((12, 4, 3), (60, 8, 8), (60, 60, 1)):
        check_shares(*shares)
    with pytest.raises(UserError, match=r"--streams 60 of 8 processes: give .* 8, .* is 7"):
        check_shares(60, 7, 8)
    with pytest.raises(UserError, match="--streams 2 of 3 processes: give each one at least"):
        check_shares(2, 1, 3)


def test_the_last_chunk_scales_the_learning_rate_by_its_drawn_length():
    assert chunk_plan(10, 4) == [Chunk(0, 4, 4), Chunk(4, 4, 4), Chunk(8, 2, 4)]
    assert streams(10, 1)[Chunk(8, 2, 6)]["lr_scale"] == 1.5
    with pytest.raises(ValueError, match="train: 3 tokens cannot fill 4 streams"):
        streams(3, 4)


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
