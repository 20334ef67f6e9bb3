"""Every head on both recurrent trunks; the AWD-LSTM's state, dropouts and embeddings."""

from argparse import Namespace

import pytest
import torch

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import tokens
from highrank_plugins.own_layers.ours import stored_matrix
from tests.models.small import assert_scores_of_one_pass, build
from tests.stream_corpus import CERTAIN

SEPARATE = ("low_rank", "tiers", "codebook")  # matrices without a row for each class
RATES = """--dropout 0.4 --dropouti 0.4 --dropouth 0.25 --dropoute 0.1 --wdrop 0.5
    --embed-noise 0.1""".split()


def options_of(arch):
    """Return the options without which a head is too large for the small data, or refused."""
    words = ["--head-plif-knots", "50"] if "plif" in arch else []
    words += ["--head-low-rank-rank", "8"] if "low_rank" in arch else []
    return words + ["--separate-embeddings"] * (arch.endswith(SEPARATE) and "_lm_" in arch)


@pytest.fixture
def mos(lm_data):
    """Return a function (*words) → MoS on an AWD-LSTM."""
    return lambda *words: build(lm_data, "awd_lstm_lm_mos", "--head-components", 3, *words)


def assert_embedding_is_matrix(model, token):
    names, embedding = set(model.state_dict()), model.decoder.trunk.embed.weight
    assert {"decoder.output_projection.bias", "decoder.trunk.embed.weight"} <= names
    if token in SEPARATE:
        assert all(p is not embedding for p in model.head.parameters())
        return
    assert stored_matrix(model.head) is embedding
    name = "parametrizations.weight.original" if token in ("centred", "unit") else "weight"
    assert f"decoder.output_projection.{name}" in names


def assert_loss_is_of_log_probs(built, sample):
    pad, target, inputs = built.task.target_dictionary.pad(), sample["target"], sample["net_input"]
    log_probs, _ = built.model(**inputs)
    want = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(target == pad, 0)
    options = {"target": target, "ignore_index": pad}
    each = built.model(**inputs, **options, reduction="none", accuracy=True)
    torch.testing.assert_close(each.loss, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(each.correct, (log_probs.argmax(-1) == target) & (target != pad))
    total = built.model(**inputs, **options)
    for got in (total.loss, total.nll):
        torch.testing.assert_close(got, want.sum(), rtol=1e-5, atol=1e-4)
    normalised = built.model.get_normalized_probs((log_probs, None), log_probs=True)
    torch.testing.assert_close(normalised, log_probs)


@pytest.mark.parametrize("token", sorted(tokens()))
@pytest.mark.parametrize("trunk", ["lstm", "awd_lstm_lm"])
def test_every_layer_learns_scores_and_generates(trunk, token, mt_data, lm_data):
    """Build it with the dropouts of its architecture."""
    arch, of_streams = f"{trunk}_{token}", trunk == "awd_lstm_lm"
    words = ["--label-smoothing", "0.1", *options_of(arch)]
    built = build(lm_data if of_streams else mt_data, arch, *words)
    model, sample = built.model, built.batch()
    if of_streams:
        assert_embedding_is_matrix(model, token)
    torch.manual_seed(0)
    built.criterion(model.train(), sample)[0].backward()
    for name, parameter in model.named_parameters():
        # initial biases of 0 and gates make no exception
        assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name
    model.eval()
    assert_loss_is_of_log_probs(built, sample)
    if not of_streams:
        assert_scores_of_one_pass(built, sample)
        return
    prefix = torch.randint(4, 20, (3, 3))
    found = assert_scores_of_one_pass(built, {"net_input": {"src_tokens": prefix}})
    for start, hypotheses in zip(prefix, found, strict=True):
        assert all(torch.equal(h["tokens"][:3], start) for h in hypotheses)


@pytest.mark.parametrize(
    ("layer", "width"), [("softmax", None), ("mos", None), ("mixtape", None), ("mos", 40)]
)
def test_the_vocabulary_matrix_may_be_separate(layer, width, lm_data):
    arch, words = f"awd_lstm_lm_{layer}", [] if width is None else ["--head-embed-dim", width]
    separate = build(lm_data, arch, "--separate-embeddings", *words).model
    weight, embedding = separate.head.weight, separate.decoder.trunk.embed.weight
    assert weight.shape == (len(embedding), width or embedding.size(1))
    assert weight is not embedding and not torch.equal(weight[:, :8], embedding[:, :8])
    for matrix in (weight, embedding):
        assert 0.09 < matrix.abs().max() <= 0.1  # U(±0.1), as the shared one
    if width is not None:
        return
    shared = build(lm_data, arch).model  # one matrix does not start from two
    with pytest.raises(UserError, match=r"vocabulary matrix beside the embedding.*--separate-"):
        shared.load_state_dict(separate.state_dict())
    shared.head.weight.data[3, 1] = torch.nan
    shared.load_state_dict(shared.state_dict())  # which another message names
    shared.head.weight.data[3, 1] = 0
    separate.load_state_dict(shared.state_dict())
    assert torch.equal(separate.head.weight, separate.decoder.trunk.embed.weight)


def test_truncated_backpropagation_gets_features_and_state_and_rates_reach_the_trunk(mos):
    built = mos(*RATES)
    assert vars(built.model.decoder.trunk.rates) == {
        "dropout": 0.4, "dropouti": 0.4, "dropouth": 0.25, "dropoute": 0.1,
        "wdrop": 0.5, "embed_noise": 0.1,
    }  # fmt: skip
    words = built.batch()["net_input"]["src_tokens"]
    features, state, raw = built.model.train().bptt_features(words)
    batch, time = words.shape
    assert features.shape == raw.shape == (time, batch, 32)
    kept = features != 0
    torch.testing.assert_close(features[kept], raw[kept] / 0.6)
    assert [h.shape for h, _ in state] == [(1, batch, 24), (1, batch, 32)]
    built.model.eval()
    evaluated = built.model.bptt_features(words)
    want = built.model.features(words)[0].transpose(0, 1)
    assert torch.equal(evaluated.features, want) and torch.equal(evaluated.raw, want)
    stock = mos("--criterion", "cross_entropy")
    losses = [b.criterion(b.model.eval(), b.batch())[0] for b in (mos(), stock)]
    torch.testing.assert_close(*losses)
    with pytest.raises(UserError, match="an AWD-LSTM can teach, but not learn from a teacher"):
        built.model(words, target=object())
    generation = Namespace(retain_dropout=True)
    with pytest.raises(ValueError, match="--head-z-loss has no effect with this criterion"):
        mos("--head-z-loss", 1).model.train()(words)
    with pytest.raises(ValueError, match="--retain-dropout does not act"):
        built.model.prepare_for_inference_(Namespace(generation=generation))


def test_dropout_on_contexts_is_locked_over_time(mos):
    built = mos(*CERTAIN, "--head-dropout", "0.5")
    words = built.batch()["net_input"]["src_tokens"]
    for parameter in built.model.decoder.trunk.layers.parameters():
        torch.nn.init.zeros_(parameter)  # features are 0 everywhere: only masks make a difference
    torch.nn.init.normal_(built.model.head.latent.bias)
    model = built.model.train()
    same = torch.full_like(words, 5)
    for values in (model(words)[0], model(words, target=same, reduction="none").loss[..., None]):
        torch.testing.assert_close(values, values[:, :1].expand_as(values))
        assert not torch.allclose(values[0, 0], values[1, 0], rtol=1e-4)
