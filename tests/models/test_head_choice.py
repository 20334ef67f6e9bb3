"""Explicit options win over the architecture's, these over the head's, and reach the head."""

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from torch import nn

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head, Vocabulary
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import PLIF, MonotoneMLP
from highrank_plugins.heads.vocabulary import VOCABULARY
from highrank_plugins.hooks.optimizers import own_rate
from highrank_plugins.models.head_from_options import (
    choose_head,
    function_options,
    head_from_options,
    require_same_function,
)
from tests.models.small import build

TRUNK = {"head_bias": "false"}
MOS_PLIF = {"head": "mos", "head_pointwise": "plif"}


def choose(arch=None, **options):
    return choose_head(options, arch or {}, TRUNK)


class Own(Head):
    """Stand for a structure that shares names of arguments with Mixtape."""

    def __init__(self, *args, frequent: int = 3, locked_dropout: bool = False, **options):
        super().__init__(*args, **options)


def test_a_layer_of_a_users_has_its_own_options(monkeypatch):
    # without its architectures, which cannot be removed again
    monkeypatch.setitem(HEADS._classes, "own", Own)
    chosen = choose_head({"head": "own"}, {}, TRUNK, language_model=True)
    assert chosen["head_frequent"] == 3
    assert chosen["head_locked_dropout"] is False
    assert not chosen.keys() & {"head_frequent_ratio", "head_gate_biases"}
    monkeypatch.setattr(MonotoneMLP, "own_rate", "centres")
    chosen = choose(head_pointwise="monotone_mlp", head_monotone_mlp_lr=0.1)
    assert chosen["head_monotone_mlp_lr"] == 0.1
    with pytest.raises(ValueError, match=r"--head-monotone-mlp-lr.*gss"):
        choose(head_pointwise="gss", head_monotone_mlp_lr=0.1)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"head_components": 3, "head_plif_knots": 7, "head_bias": "true"},
         {"head": "mos", "head_components": 3, "head_plif_knots": 7, "head_bias": "true"}),
        # another head drops the architecture's other defaults, another function keeps its head
        ({"head": "moc"}, {"head_pointwise": "identity", "head_plif_knots": None}),
        ({"head": "mos"}, {"head_pointwise": "plif"}),
        ({"head_pointwise": "gss"}, {"head": "mos", "head_gss_k": 2.5, "head_plif_knots": None}),
        ({"head_plif_lr": 0.02}, {"head_plif_lr": 0.02}),
    ],
)  # fmt: skip
def test_explicit_options_win(options, wanted):
    chosen = choose(MOS_PLIF, **options)
    assert {name: chosen.get(name) for name in wanted} == wanted
    assert choose(**chosen) == chosen


def test_the_error_about_a_foreign_option_names_layers_that_have_it():
    for options, layers in (
        ({"head": "mos", "head_gss_c": 0.5}, "gss"),
        ({"head": "softmax", "head_components": 4}, "mixtape, moc, mos"),
        ({"head": "mos", "head_plif_lr": 0.1}, "plif"),
    ):
        with pytest.raises(ValueError, match=f"no such option; it has .*has it: {layers}$"):
            choose(**options)


def test_unset_options_take_the_defaults_of_arch_and_head():
    for language_model, ratio in ((False, 0.5), (True, 0.1)):
        chosen = choose_head({"head": "mixtape"}, {}, TRUNK, language_model)
        wanted = {"head_components": 4, "head_gate_biases": "paper", "head_pointwise": "identity"}
        wanted |= {"head_frequent_ratio": ratio, "head_bias": "false"}
        assert chosen.items() >= wanted.items()


class Shifted(Vocabulary):
    """Stand for a matrix of a user's, with an option that no parameter shows."""

    def __init__(self, by: float = 0.5):
        super().__init__()
        self.by = by

    def forward(self, raw):
        return raw + self.by

    def right_inverse(self, matrix):
        return matrix - self.by


def test_a_matrix_has_options_checks_construction_and_identity(monkeypatch):
    monkeypatch.setitem(VOCABULARY._classes, "shifted", Shifted)
    monkeypatch.setattr(Shifted, "registered_name", "shifted", raising=False)
    with pytest.raises(ValueError, match=r"--head-vocabulary plain has no .*has it: shifted"):
        choose(head_shifted_by=2.0)
    with pytest.raises(ValueError, match=r"--head-vocabulary: unknown .*did you mean 'shifted'"):
        choose(head_vocabulary="shfted")
    head = made(head="mos", head_vocabulary="shifted", head_shifted_by=2.0)
    assert torch.equal(head.weight, torch.ones(9, 4))
    assert torch.equal(head.parametrizations.weight.original, -torch.ones(9, 4))
    own = {"head_shifted_by": 2.0, "head_context_scale": 1.0}
    identity = {"head": "mos", "head_pointwise": "identity", "head_vocabulary": "shifted"} | own
    assert function_options(head) == identity
    require_same_function(identity, head)
    for option, there, here in (("shifted_by", 1.0, 2.0), ("vocabulary", "plain", "shifted")):
        with pytest.raises(
            ValueError, match=f"--head-{option.replace('_', '-')} {there} there, {here}"
        ):
            require_same_function(identity | {f"head_{option}": there}, head)
    plain = function_options(made(head="mos")) | {"head_vocabulary": "centred"}
    with pytest.raises(ValueError, match="--head-vocabulary centred there, plain in the model"):
        require_same_function(plain, made(head="mos"))


def made(tied=False, width=4, **options):
    cfg = Namespace(head_embed_dim=None, **choose(**options))
    return head_from_options(cfg, nn.Parameter(torch.ones(9, width)), 4, Dictionary(), tied=tied)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_vocabulary": "low_rank"}, "low_rank: --head-low-rank-rank 64 is above 4, the"),
        ({"head_vocabulary": "low_rank", "head_low_rank_rank": 0}, "--head-low-rank-rank must be"),
        ({"head_vocabulary": "codebook", "head_codebook_ratio": 1.5}, r"ratio must lie in \(0, 1]"),
        *(({"head_vocabulary": "tiers", "head_tiers_shares": shares}, "shares: expected numbers ab")
          for shares in ("0.5,,0.5", "0.1,0.2", "a", "2,-1")),
        ({"head_vocabulary": "tiers"}, "factor 4: tier 3 would have 5 of 9 classes and rows of w"),
        *(({"head_vocabulary": name, "tied": True}, f"{name}: its parameters have no row for each")
          for name in ("low_rank", "tiers", "codebook")),
    ],
)  # fmt: skip
def test_a_wrong_matrix_is_refused_by_its_option(options, message):
    with pytest.raises(ValueError, match=message) as refused:
        made(**options)
    assert str(refused.value).startswith("--head-vocabulary")
    assert "\n" not in str(refused.value)


def test_the_parameter_of_a_tied_matrix_is_the_embedding_and_tiers_are_sorted():
    for name in ("centred", "unit"):
        weight = nn.Parameter(torch.randn(9, 4))
        cfg = Namespace(head_embed_dim=None, **choose(head_vocabulary=name))
        head = head_from_options(cfg, weight, 4, Dictionary(), tied=True)
        assert head.parametrizations.weight.original is weight
        assert not torch.equal(head.weight, weight)
    dictionary = Dictionary()
    for word, count in (("a", 5), ("b", 7)):
        dictionary.add_symbol(word, n=count)
    cfg = Namespace(head_embed_dim=None, **choose(head_vocabulary="tiers", head_tiers_factor=2))
    with pytest.raises(ValueError, match=r"not sorted by count: .*the first tier of"):
        head_from_options(cfg, nn.Parameter(torch.ones(9, 4)), 4, dictionary, tied=False)


# -- a model's head -----------------------------------------------------------------------------

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


def test_the_slopes_carry_their_own_learning_rate(trunk, monkeypatch):
    words = ["--head-plif-knots", "9", "--head-plif-lr", "0.02"]
    for token in ("plif", "mos_plif"):
        model = trunk(token, *words)
        rates = {name: own_rate(p) for name, p in model.named_parameters()}
        slopes = "decoder.output_projection.pointwise.slope_logits"
        assert {name: rate for name, rate in rates.items() if rate} == {slopes: (0.02, False)}
    with pytest.raises(ValueError, match="plif here has no parameter slope_logits that train"):
        trunk("plif", *words, "--head-plif-freeze")
    monkeypatch.setattr(PLIF, "own_rate", "slops")
    trunk("plif", *words[:2])
    with pytest.raises(UserError, match="--head-plif-lr: plif here has no parameter slops that tr"):
        trunk("plif", *words)


def test_the_vocabulary_matrix_may_be_narrower_or_shared(trunk, joined_data):
    tied = "--share-decoder-input-output-embed"
    head = trunk("mos", "--head-embed-dim", "8").head
    assert (head.embed_dim, head.feature_dim) == (8, 32)
    with pytest.raises(ValueError, match=r"--head-embed-dim 8.*32"):
        trunk("mos", "--head-embed-dim", "8", tied)
    model = trunk("mixtape", tied)
    assert model.head.weight is model.decoder.embed_tokens.weight
    model = build(joined_data, "transformer_mixtape_tiny", "--share-all-embeddings").model
    assert model.head.weight is model.encoder.embed_tokens.weight
