"""A checkpoint over a text: every token once, state carried, no dropout; what is refused."""

import pytest
import torch

from highrank_plugins.evaluation.adaptation import (
    Adaptation,
    GradientStatistics,
    dynamic_evaluation,
    gather_statistics,
)
from highrank_plugins.heads import tokens
from highrank_plugins.inference.streaming_model import StreamingModel
from tests.inference.checkpoints import FEW_KNOTS, RATES, write_checkpoint
from tests.models import small
from tests.models.test_recurrent import options_of
from tests.stream_corpus import binarise, write_text
from tests.tasks.built import build


@pytest.fixture(scope="module")
def mos(stream_data, tmp_path_factory):
    """Return MoS with every dropout of its training run."""
    path = tmp_path_factory.mktemp("mos") / "mos.pt"
    words = [*RATES, "--head-components", 3, "--head-dropout", 0.3]
    write_checkpoint(path, build(stream_data, *words, arch="awd_lstm_lm_mos"))
    return StreamingModel.open(path, str(stream_data), "cpu")


def in_one_go(model, split):
    """Return −log P of every token of a split, from a single forward pass."""
    target = model.text(split)
    source = torch.cat([torch.tensor([model.task.dictionary.eos()]), target[:-1]])
    with torch.no_grad():
        log_probs, _ = model.model(source.unsqueeze(0))
    return -log_probs[0].gather(-1, target.unsqueeze(-1)).squeeze(-1)


def test_observe_returns_outputs_before_dropout_and_scores(mos):
    want, state, parts = in_one_go(mos, "test"), None, []
    for batch in mos.segments("test", 7).starting_at(0):
        hidden, target, log_probs, state = mos.observe(batch, state)
        assert hidden.shape == (len(target), mos.model.decoder.trunk.feature_dim)
        parts.append((hidden, target, log_probs))
    hidden, target, log_probs = (torch.cat(part) for part in zip(*parts, strict=True))
    assert torch.equal(target, mos.text("test"))
    torch.testing.assert_close(-log_probs, want)
    source = torch.cat([torch.tensor([mos.task.dictionary.eos()]), target[:-1]])
    with torch.no_grad():
        raw = mos.model.decoder.trunk(source.unsqueeze(1)).raw[:, 0]
    torch.testing.assert_close(hidden, raw)


def test_several_streams_and_part_of_a_text_are_cut_into_segments(mos):
    segments = mos.segments("train", 5, count=4)
    assert sum(batch["ntokens"] for batch in segments.starting_at(0)) == len(mos.text("train"))
    some = list(mos.segments("valid", 5, tokens=12).starting_at(1))
    assert torch.equal(torch.cat([b["target"][0] for b in some]), mos.text("valid")[5:12])


def test_gradients_are_computed_without_dropout(mos):
    (batch,) = mos.segments("test", 20, tokens=20).starting_at(0)
    one, other = (torch.autograd.grad(mos.score(batch, None)[0], mos.parameters()) for _ in "12")
    torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert all(g.abs().sum() > 0 for g in one)


def test_a_tied_matrix_learns_once_and_a_frozen_tensor_never(stream_data, tmp_path):
    words = [*FEW_KNOTS, "--head-plif-freeze"]
    built = build(stream_data, *words, arch="awd_lstm_lm_plif")
    path = write_checkpoint(tmp_path / "a.pt", built)
    model = StreamingModel.open(path, str(stream_data), "cpu")
    names = {id(p): name for name, p in model.model.named_parameters()}
    found = [names[id(p)] for p in model.parameters()]
    assert len(found) == len(set(found))
    assert sum("embed.weight" in n or "output_projection.weight" in n for n in found) == 1
    assert not any("slope" in name for name in found)


@pytest.mark.parametrize("token", sorted(tokens()))
def test_every_head_learns_from_what_it_scores(token, stream_data, tmp_path):
    more = ["--head-tiers-factor", 2] if token == "tiers" else []
    arch = f"awd_lstm_lm_{token}"
    built = build(stream_data, *options_of(arch), *more, arch=arch)
    path = write_checkpoint(tmp_path / "a.pt", built)
    model = StreamingModel.open(path, str(stream_data), "cpu")
    parameters = model.parameters()
    start = [p.detach().clone() for p in parameters]
    statistics = GradientStatistics(parameters)
    train = model.segments("train", 5, count=10, tokens=200).starting_at(0)
    list(gather_statistics(model.score, parameters, train, statistics))
    (batch,) = model.segments("test", 5, tokens=5).starting_at(0)
    steps = dynamic_evaluation(
        lambda segment, state: model.score(segment, None),  # the same five words again and again
        parameters, [batch] * 8, start, statistics.finish(), Adaptation(0.02, 1e-3, 0.001),
    )  # fmt: skip
    losses = [step.nll for step in steps]
    assert losses[-1] < losses[0] - 0.2
    names = {id(p): name for name, p in model.model.named_parameters()}
    still = {names[id(p)] for p, p0 in zip(parameters, start, strict=True) if torch.equal(p, p0)}
    assert all(name.endswith("pointwise.out_bias") for name in still)  # it moves all logits alike


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
