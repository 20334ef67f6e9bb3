"""Options reach the head; values out of range are refused by the name of the option."""

import pytest
import torch

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.pointwise import PLIF
from highrank_plugins.heads.pointwise.caps import Softcap
from highrank_plugins.hooks.optimizers import own_rate
from tests.models.small import build, configure

ARCHS = {"transformer_{}_tiny": "mt_data", "transformer_lm_{}": "lm_data"}


@pytest.fixture(params=ARCHS)
def trunk(request):
    """Return a function (token, *words) → model, for each trunk."""
    data = request.getfixturevalue(ARCHS[request.param])
    return lambda token, *words: build(data, request.param.format(token), *words).model


def test_mixtape_gets_its_options(trunk):
    words = """--head-components 2 --head-gate-dim 5 --head-frequent-ratio 0.25 --head-dropout 0.1
        --head-gate-dropout 0.2 --head-gate-noise 0.3 --head-gate-weight-norm 1.5
        --head-gate-biases full --head-bias true --head-pointwise gss --head-gss-c 0.5
        --head-context-scale 4""".split()
    head = trunk("mixtape", *words).head
    assert (head.components, head.gate_dim, head.dropout) == (2, 5, 0.1)
    assert head.context_scale == 4
    assert head.frequent == int(0.25 * head.num_classes) == len(head.gate_embed)
    assert (head.gate_dropout, head.gate_noise) == (0.2, 0.3)
    assert {"bias", "gate_hidden.bias", "gate_shared.bias", "gate_bias"} <= set(head.state_dict())
    assert head.pointwise.kernel_function.numbers == (0.5, 2.5)


@pytest.mark.parametrize("choice", ["paper", "none"])
def test_gate_biases_follow_the_option(trunk, choice):
    names = set(trunk("mixtape", "--head-gate-biases", choice).head.state_dict())
    biases = {"gate_hidden.bias", "gate_shared.bias", "gate_bias"} & names
    assert biases == ({"gate_bias"} if choice == "paper" else set())


def test_state_dict_names_are_public(trunk):
    prefix = "decoder.output_projection."
    names = {n.removeprefix(prefix) for n in trunk("mos").state_dict() if n.startswith(prefix)}
    assert names == {"weight", "prior.weight", "latent.weight", "latent.bias"}


def test_frozen_slopes_do_not_train(trunk):
    head = trunk("plif", "--head-plif-knots", "9", "--head-plif-freeze").head
    assert not head.pointwise.slope_logits.requires_grad
    assert trunk("plif", "--head-plif-knots", "9").head.pointwise.slope_logits.requires_grad


def test_the_slopes_carry_their_own_learning_rate(trunk):
    words = ["--head-plif-knots", "9", "--head-plif-lr", "0.02"]
    for token in ("plif", "mos_plif"):
        model = trunk(token, *words)
        rates = {name: own_rate(p) for name, p in model.named_parameters()}
        slopes = "decoder.output_projection.pointwise.slope_logits"
        assert {name: rate for name, rate in rates.items() if rate} == {slopes: (0.02, False)}
    with pytest.raises(ValueError, match=r"--head-plif-lr: .*--head-plif-freeze"):
        trunk("plif", *words, "--head-plif-freeze")


def test_a_rate_of_a_parameter_that_the_layer_lacks_is_refused(trunk, monkeypatch):
    monkeypatch.setattr(PLIF, "own_rate", "slops")
    trunk("plif", "--head-plif-knots", "9")
    with pytest.raises(UserError, match="--head-plif-lr: `own_rate` of class PLIF names 'slops',"):
        trunk("plif", "--head-plif-knots", "9", "--head-plif-lr", "0.02")


def test_the_vocabulary_matrix_may_be_narrower(trunk):
    head = trunk("mos", "--head-embed-dim", "8").head
    assert (head.embed_dim, head.feature_dim) == (8, 32)
    with pytest.raises(ValueError, match=r"--head-embed-dim 8.*32"):
        trunk("mos", "--head-embed-dim", "8", "--share-decoder-input-output-embed")


def test_shared_embeddings_are_one_parameter(trunk, joined_data):
    model = trunk("mixtape", "--share-decoder-input-output-embed")
    assert model.head.weight is model.decoder.embed_tokens.weight
    model = build(joined_data, "transformer_mixtape_tiny", "--share-all-embeddings").model
    assert model.head.weight is model.encoder.embed_tokens.weight


SIZES = ["--encoder-embed-dim", "16", "--decoder-embed-dim", "16"]
SHARED = ["--share-decoder-input-output-embed"]


@pytest.mark.parametrize(
    ("arch", "words"),
    [
        ("transformer_mos_tiny", [*SHARED, "--decoder-output-dim", "24"]),
        ("transformer_lm_mos", ["--decoder-output-dim", "24"]),
        ("lstm_mos", [*SIZES, "--decoder-out-embed-dim", "24"]),
        ("awd_lstm_lm_mos", [*SIZES[2:], "--decoder-last-hidden-size", "24"]),
        ("awd_lstm_lm_mos", [*SIZES[2:], "--separate-embeddings"]),
    ],
    ids=str,
)
def test_head_sizes_equal_those_of_the_built_model(arch, words, mt_data, lm_data):
    data = lm_data if "_lm_" in arch else mt_data
    model = build(data, arch, *words).model
    features, width, tied = model.head_sizes(configure(data, arch, *words).model)
    assert (features, width) == (model.head.feature_dim, model.head.weight.size(1))
    assert tied == model.decoder.share_input_output_embed


def test_a_target_out_of_range_is_refused(trunk):
    model = trunk("mos")
    tokens = torch.full((1, 3), 5)
    inputs = {"prev_output_tokens": tokens} if hasattr(model, "encoder") else {}
    with pytest.raises(ValueError, match="target"):
        model(tokens, src_lengths=torch.tensor([3]), target=tokens + 10_000, **inputs)


def test_an_option_that_no_checkpoint_can_compare_is_named(trunk, monkeypatch, caplog):
    def cap_under_another_name(self, cap: float = 30.0):
        made(self, cap)
        del self.cap

    made = Softcap.__init__
    monkeypatch.setattr(Softcap, "__init__", cap_under_another_name)
    monkeypatch.setattr(Softcap, "constants", None)
    trunk("softcap")
    assert "softcap has no attribute cap, so no checkpoint can compare this option" in caplog.text
    caplog.clear()
    trunk("gss")
    assert "no checkpoint can compare" not in caplog.text
