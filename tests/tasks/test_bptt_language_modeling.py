"""The task carries the state, scales the rate by length, and refuses options that lose tokens."""

import pytest
import torch
from torch.testing import assert_close

from tests.fairseq_cli import attempt
from tests.stream_corpus import CERTAIN, binarise, write_text
from tests.tasks.built import build


def test_carrying_the_state_through_chunks_equals_one_long_pass(stream_data):
    built = build(stream_data, *CERTAIN)
    batches = built.batches()
    assert len(batches) > 5
    built.model.double()
    total = sum(built.task.valid_step(b, built.model, built.criterion)[0] for b in batches)

    whole = torch.cat([b["net_input"]["src_tokens"] for b in batches], dim=1)
    target = torch.cat([b["target"] for b in batches], dim=1)
    with torch.no_grad():
        want = built.model(whole, target=target, ignore_index=built.criterion.padding_idx)
    assert_close(total, want.loss, rtol=1e-12, atol=0)


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


def test_validation_within_an_epoch_leaves_the_training_state_alone(stream_data):
    built = build(stream_data, *CERTAIN)
    first, second, *_ = built.batches()
    built.task.train_step(first, built.model, built.criterion, Optimizer(1.0), 0)
    before = built.task.training_state.states
    assert not any(t.requires_grad for state in before.values() for layer in state for t in layer)
    for batch in built.batches("valid"):
        built.task.valid_step(batch, built.model, built.criterion)
    assert built.task.training_state.states is before
    built.task.training_state.give(second)


def test_the_training_text_can_be_validated_on_like_any_other(stream_data):
    built = build(stream_data)
    built.batches()
    streams = built.task.training_streams
    batches = built.batches(update_epoch_batch_itr=None, max_sentences=2)
    assert built.task.training_streams is streams
    assert set(lengths(batches)[:-1]) == {8}
    assert {len(b["target"]) for b in batches} == {1}
    assert sum(b["ntokens"] for b in batches) == len(built.task.dataset("train"))


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


def test_a_skipped_batch_is_an_error(stream_data):
    built = build(stream_data)
    first, _, third, *_ = built.batches()
    built.task.train_step(first, built.model, built.criterion, Optimizer(1.0), 0)
    with pytest.raises(RuntimeError, match=r"position .* is lost.*--reset-dataloader"):
        built.task.train_step(third, built.model, built.criterion, Optimizer(1.0), 1)


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


def test_batches_stay_whole_for_any_required_multiple(stream_data):
    built = build(stream_data)
    batches = built.batches(max_sentences=5, required_batch_size_multiple=8)
    assert {len(b["target"]) for b in batches} == {5}
    assert sum(b["ntokens"] for b in batches) == len(built.task.dataset("train"))


def test_a_split_without_tokens_is_refused(tmp_path):
    write_text(tmp_path)
    data = binarise(tmp_path)
    (data / "valid.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"valid\.bin is empty"):
        build(data).task.load_dataset("valid")


def test_a_dictionary_of_another_text_is_refused(tmp_path):
    write_text(tmp_path)
    data = binarise(tmp_path, "--dataset-impl", "lazy")
    words = (data / "dict.txt").read_text().splitlines(keepends=True)
    (data / "dict.txt").write_text("".join(words[:4]))
    with pytest.raises(ValueError, match=r"valid.bin has word number \d+, but dict.txt has"):
        build(data, "--dataset-impl", "lazy").task.load_dataset("valid")


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
