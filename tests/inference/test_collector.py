"""Any checkpoint along a text: what stock fairseq computes, every token once, in float64 too."""

import pytest
import torch

from highrank_plugins.inference.collector import Collector, Processes
from tests.inference.checkpoints import FEW_KNOTS, write_checkpoint
from tests.models import small
from tests.tasks.built import build

ARCHS = ["transformer", "transformer_mos", "transformer_lm", "transformer_lm_mixtape", "lstm"]
STOCK = ["--criterion", "cross_entropy"]


@pytest.fixture(scope="module", params=ARCHS)
def any_kind(request, mt_data, lm_data, tmp_path_factory):
    """Return checkpoint, data, and the checkpoint's model."""
    arch = request.param
    data = lm_data if "_lm" in arch else mt_data
    words = STOCK if arch in ("transformer", "transformer_lm", "lstm") else []
    built = small.build(data, arch, *words)
    path = write_checkpoint(tmp_path_factory.mktemp(arch) / "a.pt", built)
    return path, str(data), built


def joined(collector, name):
    return torch.cat([getattr(block, name) for block in collector.blocks()])


@torch.no_grad()
def by_fairseq(built, split):
    """Yield log P of each sentence [T, M] and its words [T], one sentence at a time."""
    built.model.eval()
    built.task.load_dataset(split)
    data = built.task.dataset(split)
    for index in range(len(data)):
        batch = data.collater([data[index]])
        out = built.model(**batch["net_input"])
        yield built.model.get_normalized_probs(out, log_probs=True)[0], batch["target"][0]


def test_blocks_equal_fairseqs_predictions_in_text_order(any_kind):
    path, data, built = any_kind
    log_probs, words = zip(*by_fairseq(built, "valid"), strict=True)
    collector = Collector.open(path, data, "valid", rows=80)
    assert collector.total == sum(map(len, words))
    assert torch.equal(joined(collector, "target"), torch.cat(words))
    torch.testing.assert_close(
        joined(collector, "log_probs"), torch.cat(log_probs), rtol=1e-4, atol=1e-4
    )
    assert [block.first for block in collector.blocks()] == collector.starts[:-1]


def test_only_layers_with_a_single_logit_vector_have_logits(any_kind):
    path, data, _ = any_kind
    collector = Collector.open(path, data, "valid", tokens=30)
    for block in collector.blocks():
        if "mos" in path.parent.name:
            assert block.logits is None and not collector.head.has_logits
        else:
            torch.testing.assert_close(block.logits.log_softmax(-1), block.log_probs)


def test_part_of_a_text_is_collected_in_float64(any_kind):
    path, data, _ = any_kind
    whole = joined(Collector.open(path, data, "valid"), "log_probs")
    wide = Collector.open(path, data, "valid", tokens=41, rows=60, dtype="float64")
    found = joined(wide, "log_probs")
    assert found.dtype == torch.float64 and len(found) == wide.total == 41
    torch.testing.assert_close(found.float(), whole[:41], rtol=1e-4, atol=1e-4)
    # rows sum to 1 as only float64 can
    assert found.logsumexp(1).abs().max() < 1e-12


@pytest.mark.parametrize("count", [2, 3])
def test_the_parts_of_several_processes_make_up_the_whole(any_kind, count):
    path, data, _ = any_kind
    whole = joined(Collector.open(path, data, "valid", rows=60, tokens=300), "log_probs")
    parts = [
        joined(Collector.open(path, data, "valid", rows=60, tokens=300, processes=one), "log_probs")
        for one in (Processes(rank, count) for rank in range(count))
    ]
    assert min(map(len, parts)) > 0 and torch.equal(torch.cat(parts), whole)


def test_a_stream_carries_its_state_through_blocks_and_processes(stream_data, tmp_path):
    built = build(stream_data, *FEW_KNOTS, arch="awd_lstm_lm_plif")
    path = write_checkpoint(tmp_path / "a.pt", built)
    data = str(stream_data)
    built.model.eval()
    whole = Collector.open(path, data, "test", rows=1000)
    target = joined(whole, "target")
    source = torch.cat([torch.tensor([built.task.dictionary.eos()]), target[:-1]])
    with torch.no_grad():
        want = built.model(source.unsqueeze(0))[0][0]
    torch.testing.assert_close(joined(whole, "log_probs"), want)
    parts = [
        joined(Collector.open(path, data, "test", rows=7, processes=one), "log_probs")
        for one in (Processes(rank, 3) for rank in range(3))
    ]
    assert min(map(len, parts)) > 0
    torch.testing.assert_close(torch.cat(parts), want)


def test_a_checkpoint_trained_on_lines_carries_no_state(lm_data, tmp_path):
    built = small.build(lm_data, "awd_lstm_lm_softmax")
    path = write_checkpoint(tmp_path / "a.pt", built)
    log_probs, _ = zip(*by_fairseq(built, "valid"), strict=True)
    found = joined(Collector.open(path, str(lm_data), "valid", rows=90), "log_probs")
    torch.testing.assert_close(found, torch.cat(log_probs), rtol=1e-4, atol=1e-4)


def test_other_words_and_layers_are_refused(mt_data, lm_data, stream_data, tmp_path):
    translator = write_checkpoint(tmp_path / "t.pt", small.build(mt_data, "transformer", *STOCK))
    with pytest.raises(OSError, match=r"dict\.en\.txt: no such file. A checkpoint holds no words"):
        Collector.open(translator, str(tmp_path), "valid")
    path = write_checkpoint(tmp_path / "a.pt", small.build(lm_data, "transformer_lm", *STOCK))
    with pytest.raises(ValueError, match=r"a\.pt: the target dictionary"):
        Collector.open(path, str(stream_data), "valid")
    state = torch.load(path)
    del state["task_state"]["dictionaries"]  # as fairseq without our hooks
    torch.save(state, path)
    with pytest.raises(ValueError, match=r"a\.pt does not fit .* size mismatch"):
        Collector.open(path, str(stream_data), "valid")
    words = "--criterion adaptive_loss --adaptive-softmax-cutoff 20,50 --ddp-backend legacy_ddp"
    built = small.build(lm_data, "transformer_lm", *words.split())
    with pytest.raises(ValueError, match=r"a\.pt: an adaptive softmax has no whole matrix"):
        Collector.open(write_checkpoint(path, built), str(lm_data), "valid")


def test_nan_is_reported_with_its_token(lm_data, tmp_path):
    built = small.build(lm_data, "transformer_lm", *STOCK)
    path = write_checkpoint(tmp_path / "a.pt", built)
    state = torch.load(path, weights_only=True)
    state["model"]["decoder.layers.0.fc1.bias"].fill_(float("nan"))
    torch.save(state, path)
    with pytest.raises(FloatingPointError, match=r"token 0 of the text: .* are NaN"):
        joined(Collector.open(path, str(lm_data), "valid"), "log_probs")


def test_missing_splits_too_long_sentences_and_idle_processes_are_refused(mt_data, tmp_path):
    words = ["--max-source-positions", 4, "--max-target-positions", 4]
    path = write_checkpoint(tmp_path / "a.pt", small.build(mt_data, "transformer_mos", *words))
    with pytest.raises(OSError, match="nothing"):
        Collector.open(path, str(mt_data), "nothing")
    with pytest.raises(ValueError, match=r"valid: \d+ of \d+ sentences are longer than"):
        Collector.open(path, str(mt_data), "valid")
    path = write_checkpoint(tmp_path / "b.pt", small.build(mt_data, "transformer_mos"))
    with pytest.raises(ValueError, match="2 processes are too many for 1 batch of"):
        Collector.open(path, str(mt_data), "valid", rows=10**6, processes=Processes(0, 2))
