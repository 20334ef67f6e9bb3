"""Architectures: the stock preset with a head, the papers' AWD-LSTM; and their public names."""

import re
from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import OmegaConf

import highrank_plugins
from highrank_plugins.heads import tokens
from highrank_plugins.models import archs
from highrank_plugins.models.archs import ADAPTIVE_OFF, options_of
from highrank_plugins.models.awd_lstm_lm import AWDLSTMLanguageModel, AWDLSTMLanguageModelConfig
from highrank_plugins.models.head_from_options import _layers_of
from highrank_plugins.models.head_options import HeadOptions
from highrank_plugins.models.lstm import LSTMHeadConfig
from highrank_plugins.models.relative_positions import RelativePositionOptions
from highrank_plugins.models.transformer import TransformerHeadConfig, TransformerLMHeadConfig

CONFIGS = {
    "transformer": (TransformerConfig, TransformerHeadConfig),
    "transformer_lm": (TransformerLanguageModelConfig, TransformerLMHeadConfig),
    "lstm": (None, LSTMHeadConfig),
}
LSTM_PRESETS = ["lstm", "lstm_luong_wmt_en_de", "lstm_wiseman_iwslt_de_en"]
PRESETS = [(model, preset) for model in CONFIGS for preset in ARCH_MODEL_INV_REGISTRY[model]]
TOKENS = """centred codebook gss low_rank mixtape moc monotone_mlp mos mos_plif mos_sigsoftmax
    multimax plif sigmoid_cap sigsoftmax softcap softmax tiers unit""".split()
OPTIONS = """head head_adam_lr head_bias head_codebook_ratio head_components head_context_scale
    head_dropout head_embed_dim
    head_frequent_multiple head_frequent_ratio head_gate_biases head_gate_dim head_gate_dropout
    head_gate_noise head_gate_weight_norm head_gates head_gss_c head_gss_k head_gss_learn head_loss
    head_loss_filter head_loss_memory head_low_rank_rank head_monitor head_monotone_mlp_bound
    head_monotone_mlp_units
    head_multimax_init_sd head_plif_bound head_plif_freeze head_plif_init_sd head_plif_knots
    head_plif_lr head_pointwise head_sigmoid_cap_height head_sigmoid_cap_scale
    head_sigmoid_cap_shift head_softcap_cap head_tiers_factor head_tiers_shares head_unit_by_class
    head_vocabulary head_z_loss""".split()
AWD_OPTIONS = """decoder_embed_dim decoder_hidden_size decoder_last_hidden_size decoder_layers
    dropout dropoute dropouth dropouti embed_noise separate_embeddings wdrop""".split()
REL_POS_OPTIONS = {"rel_pos_clip", "rel_pos_in"}


def ours(model, token, preset):
    return f"{model}_{token}{preset.removeprefix(model)}"


def settings_of(arch, **given):
    settings = Namespace(**given)
    ARCH_CONFIG_REGISTRY[arch](settings)
    return settings


def stock_settings(model, preset):
    stock = CONFIGS[model][0]
    settings = {name: default for name, _, default, _ in options_of(stock)} if stock else {}
    return settings | vars(settings_of(preset))


@pytest.mark.parametrize(("model", "preset"), PRESETS, ids=str)
def test_an_arch_equals_its_stock_preset_except_for_the_head(model, preset):
    want = stock_settings(model, preset) | ADAPTIVE_OFF
    of_the_trunk = [
        f.name
        for f in fields(CONFIGS[model][1])
        if not f.name.startswith(("head", "rel_pos", "_")) and not str(f.default).startswith("${")
    ]
    for token, head in tokens().items():
        config = OmegaConf.structured(CONFIGS[model][1])
        ARCH_CONFIG_REGISTRY[ours(model, token, preset)](config)
        got = OmegaConf.to_container(config, enum_to_str=True)
        assert {n: got[n] for n in of_the_trunk} == {n: want[n] for n in of_the_trunk}
        bias = {"head_bias": "true"} if model == "lstm" else {}
        assert (head | bias).items() <= got.items()


def test_names_of_layers_and_options_are_public():
    assert sorted(tokens()) == TOKENS
    names = {ours("lstm", token, preset) for token in TOKENS for preset in LSTM_PRESETS}
    assert set(ARCH_MODEL_INV_REGISTRY["lstm_highrank"]) == names | {"lstm_highrank"}
    common = HeadOptions.__dataclass_fields__.keys()
    assert sorted(common - {"_name"}) == OPTIONS
    assert sorted(AWDLSTMLanguageModelConfig.__dataclass_fields__.keys() - common) == AWD_OPTIONS
    assert RelativePositionOptions.__dataclass_fields__.keys() - {"_name"} == REL_POS_OPTIONS


def test_adaptive_softmax_and_input_are_refused():
    for name in ("adaptive_softmax_cutoff", "adaptive_input"):
        with pytest.raises(ValueError, match="--" + name.replace("_", "-")):
            settings_of("transformer_lm_mos_gpt2_tiny", **{name: [100, 200]})


def test_explicit_options_beat_preset_and_architecture():
    given = {"decoder_layers": 3, "encoder_normalize_before": False}
    settings = vars(settings_of("transformer_mos_wmt_en_de_big_t2t", **given))
    assert settings.items() >= (given | {"decoder_normalize_before": True}).items()
    given = {"decoder_hidden_size": 77, "head_bias": "false"}
    settings = vars(settings_of("lstm_mixtape_wiseman_iwslt_de_en", **given))
    assert settings.items() >= (given | {"decoder_embed_dim": 256}).items()
    assert settings["head_frequent_ratio"] == 0.5
    given = {"decoder_hidden_size": 77, "dropouti": 0.0}
    settings = vars(settings_of("awd_lstm_lm_mos_ptb", **given))
    assert settings.items() >= (given | {"decoder_embed_dim": 280, "dropouth": 0.225}).items()
    settings = settings_of("awd_lstm_lm_gss_ptb", decoder_embed_dim=200)
    assert settings.decoder_last_hidden_size == 200  # a softmax reads features of this width
    moved = settings_of("awd_lstm_lm_softmax_wt2", head="mos")  # which brings its own sizes
    assert moved == settings_of("awd_lstm_lm_mos_wt2")


# -- the AWD-LSTM ------------------------------------------------------------------------------

# of the papers, whose corpora have an end of sentence and an unknown word; fairseq adds two more
PTB, WT2, BILLION, TEXT8 = 10_000, 33_278, 100_000, 27


def dictionary_of(classes):
    """Return a dictionary of special symbols and words, sorted by count."""
    dictionary = Dictionary()
    for index in range(classes - len(dictionary)):
        dictionary.add_symbol(f"word{index}", n=classes - index)
    return dictionary


def parameters_of(arch, classes, **given):
    """Count parameters without taking memory for them."""
    config = OmegaConf.structured(AWDLSTMLanguageModelConfig(**given))
    ARCH_CONFIG_REGISTRY[arch](config)
    dictionary = dictionary_of(classes)
    assert len(dictionary) == classes
    with torch.device("meta"):
        task = SimpleNamespace(target_dictionary=dictionary)
        model = AWDLSTMLanguageModel.build_model(config, task)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("arch", "classes", "published"),
    [
        ("softmax_ptb", PTB, 24_221_600),
        ("softmax_wt2", WT2, 33_556_078),
        ("mos_ptb", PTB, 21_500_620),
        ("mos_wt2", WT2, 34_909_528),
        ("mos_wt2", WT2 + 2, 34_909_528 + 2 * 301),  # through the task: rows and biases of two more
        # GSS has no parameters; PLIF one per knot
        ("gss_ptb", PTB, 24_221_600),
        ("plif_ptb", PTB, 24_221_600 + 100_000),
        ("softmax", PTB, 24_221_600),
        ("mos", PTB, 21_500_620),
        # rounded ones, in millions
        ("moc_ptb", PTB, "22"),
        ("moc_wt2", WT2, "35"),
        ("softmax_1b", BILLION, "119"),
        ("mos_1b", BILLION, "113"),
        ("softmax_text8", TEXT8, "8.42"),
        ("mos_text8", TEXT8, "8.45"),
    ],
)
def test_parameter_counts_are_the_published_ones(arch, classes, published):
    found = parameters_of(f"awd_lstm_lm_{arch}", classes)
    if isinstance(published, str):
        decimals = len(published.partition(".")[2])
        found, published = round(found / 10**6, decimals), float(published)
    assert found == published


def test_mixtape_has_the_size_of_mos():
    for preset, classes in (("ptb", PTB), ("wt2", WT2), ("1b", BILLION)):
        sizes = [parameters_of(f"awd_lstm_lm_{t}_{preset}", classes) for t in ("mixtape", "mos")]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.002)


def test_an_architecture_sets_every_option():
    for token in tokens():
        for preset in ("", "_ptb", "_wt2", "_1b", "_text8"):
            config = OmegaConf.structured(AWDLSTMLanguageModelConfig)
            ARCH_CONFIG_REGISTRY[f"awd_lstm_lm_{token}{preset}"](config)
            assert all(config[name] is not None for name in AWD_OPTIONS)
            once = OmegaConf.to_container(config)
            ARCH_CONFIG_REGISTRY["awd_lstm_lm_softmax_text8"](config)
            assert OmegaConf.to_container(config) == once


@pytest.mark.parametrize(
    ("arch", "want"),
    [
        ("gss_ptb", {"head_gss_c": -1.5, "head_gss_k": 2.5, "head_bias": "true"}),
        ("gss_wt2", {"head_gss_c": -1.5, "head_gss_k": 3.0, "dropouti": 0.65, "dropouth": 0.2}),
        ("mos_plif_wt2", {"head_components": 15, "head_dropout": 0.29, "dropouti": 0.55}),
        ("mixtape_ptb", {"head_components": 4, "head_frequent_ratio": 0.1, "head_dropout": 0.29}),
    ],
)
def test_architectures_have_the_published_values(arch, want):
    assert want.items() <= vars(settings_of(f"awd_lstm_lm_{arch}")).items()


# -- docs/reference/archs.md -----------------------------------------------------------------

SIZES = """decoder_embed_dim decoder_layers decoder_hidden_size decoder_last_hidden_size dropoute
    dropouti dropouth dropout wdrop head_components head_dropout""".split()


def test_the_page_has_every_layer_architecture_and_size_and_no_other():
    highrank_plugins.register()
    page = (Path(__file__).parents[2] / "docs" / "reference" / "archs.md").read_text()
    layers, _, others = page.partition("## On")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \| `(\w+)` \|$", layers, re.MULTILINE)
    found = {t: [a.name for a in _layers_of(head)] for t, head in tokens().items()}
    assert {token: axes for token, *axes in rows} == found
    patterns = re.findall(r"`([\w<>]*<layer>\w*)`", others)
    named = {pattern.replace("<layer>", token) for pattern in patterns for token in tokens()}
    assert named == set(archs.names())
    for ending, head, cells in re.findall(
        r"`awd_lstm_lm_<layer>(\w+)` \| `(\w+)` \| (.*) \|", page
    ):
        settings = settings_of(f"awd_lstm_lm_{head}{ending}")
        values = [getattr(settings, name, None) for name in SIZES]
        want = ["" if value is None else str(value) for value in values]
        assert [cell.strip() for cell in cells.split("|")] == want
