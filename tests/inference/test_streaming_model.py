"""A checkpoint over a text: every token once, state carried, no dropout; saved progress.

What is refused.
"""

import pickle

import pytest
import torch

from highrank_plugins.inference.streaming_model import SavedProgress, StreamingModel
from tests.inference.checkpoints import RATES, write_checkpoint
from tests.models import small
from tests.stream_corpus import binarise, write_text
from tests.tasks.built import build


@pytest.fixture(scope="module")
def mos(stream_data, tmp_path_factory):
    """Return MoS with every dropout of its training run."""
    path = tmp_path_factory.mktemp("mos") / "mos.pt"
    words = [*RATES, "--head-components", 3, "--head-dropout", 0.3]
    write_checkpoint(path, build(stream_data, *words, arch="awd_lstm_lm_mos"))
    return StreamingModel.open(path, str(stream_data), "cpu")


def test_every_token_is_scored_once_with_the_state_and_without_dropout(mos):
    state, parts = None, []
    for batch in mos.segments("test", 7).starting_at(0):
        hidden, target, log_probs, state = mos.observe(batch, state)
        parts.append((hidden, target, log_probs))
    hidden, target, log_probs = (torch.cat(part) for part in zip(*parts, strict=True))
    assert torch.equal(target, mos.text("test"))
    source = torch.cat([torch.tensor([mos.task.dictionary.eos()]), target[:-1]])
    with torch.no_grad():
        want, _ = mos.model(source.unsqueeze(0))
        raw = mos.model.decoder.trunk(source.unsqueeze(1)).raw[:, 0]
    torch.testing.assert_close(log_probs, want[0].gather(-1, target.unsqueeze(-1)).squeeze(-1))
    torch.testing.assert_close(hidden, raw)  # the outputs before dropout
    (batch,) = mos.segments("test", 20, tokens=20).starting_at(0)
    one, other = (torch.autograd.grad(mos.score(batch, None)[0], mos.parameters()) for _ in "12")
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert all(g.abs().sum() > 0 for g in one)
    segments = mos.segments("train", 5, count=4)
    assert sum(batch["ntokens"] for batch in segments.starting_at(0)) == len(mos.text("train"))
    frozen = mos.model.head.prior.weight.requires_grad_(False)
    assert not any(frozen is p for p in mos.parameters())
    frozen.requires_grad_(True)
    some = list(mos.segments("valid", 5, tokens=12).starting_at(1))
    assert torch.equal(torch.cat([b["target"][0] for b in some]), mos.text("valid")[5:12])


def test_other_models_tasks_and_words_are_refused(mos, stream_data, tmp_path):
    files = {
        "a": write_checkpoint(tmp_path / "a.pt", small.build(stream_data, "transformer_lm")),
        "b": write_checkpoint(tmp_path / "b.pt", small.build(stream_data, "awd_lstm_lm_softmax")),
        "c": write_checkpoint(tmp_path / "c.pt", build(stream_data)),
    }
    (folder := tmp_path / "text").mkdir()
    write_text(folder)
    for text in folder.glob("*.txt"):
        text.write_text(text.read_text().replace("house", "horse"))
    other, none = binarise(folder), tmp_path / "none.pt"
    for path, data, device, message in (
        (files["a"], stream_data, None, r"a\.pt: --arch transformer_lm has no recurrent state"),
        (files["b"], stream_data, None, r"b\.pt was trained with --task language_modeling"),
        (files["c"], other, None, "is not the dictionary"),
        (none, stream_data, "tpu", "--device tpu: torch sees no such device"),
        (none, stream_data, None, r"none\.pt"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            StreamingModel.open(path, str(data), device)
    with pytest.raises(ValueError, match="split 'nothing' is missing"):
        mos.segments("nothing", 5)


# -- saved progress --------------------------------------------------------------------------------

IDENTITY = {"checkpoint": "abc", "--lr": [0.1, 0.2]}


def saved(path, identity=IDENTITY):
    return SavedProgress(path, dict(identity), 0.0)


def test_saved_progress_can_be_read_back_and_a_failed_write_leaves_the_old_file(tmp_path):
    first = saved(tmp_path / "state")
    plain = {"position": 3, "nll": [0.1], "state": None}
    first.progress["test"] = {**plain, "extra_state": [torch.arange(3.0)]}
    first.save()
    first.progress["b"] = lambda: None  # cannot be pickled
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        first.save()
    again = saved(tmp_path / "state").progress
    assert torch.equal(again["test"].pop("extra_state")[0], torch.arange(3.0))
    assert again == {"test": plain}
    other = {"checkpoint": "abc", "--lr": [0.3], "--split": "valid"}
    message = (
        r"\(--lr: \[0.1, 0.2\] there, \[0.3\] now; --split: None there, valid now\).* --output"
    )
    with pytest.raises(ValueError, match=message):
        saved(tmp_path / "state", identity=other)
    first.remove()
    later = saved(tmp_path / "state")
    assert later.progress == {} and not later.path.exists()


@pytest.mark.parametrize("damage", ["flip", "half"])
def test_damaged_progress_is_refused(tmp_path, damage):
    progress = saved(tmp_path / "state")
    progress.progress["weights"] = torch.arange(1000.0)
    progress.save()
    raw = bytearray(progress.path.read_bytes())
    raw[len(raw) // 2] ^= 1
    progress.path.write_bytes(raw)
    if damage == "half":
        torch.save({"identity": {}}, progress.path)
    with pytest.raises(ValueError, match=r"state is .*(damaged|truncated)"):
        saved(tmp_path / "state")
