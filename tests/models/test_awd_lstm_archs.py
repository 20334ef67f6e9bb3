"""Architectures of the AWD-LSTM: the papers' sizes, what may be changed, and public names."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq import tasks
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf

from highrank_plugins.heads import tokens
from highrank_plugins.models.awd_lstm_lm import AWDLSTMLanguageModel, AWDLSTMLanguageModelConfig
from highrank_plugins.models.head_options import HeadOptions
from tests.models.small import configure

PRESETS = ["", "_ptb", "_wt2", "_1b", "_text8"]
OPTIONS = """decoder_embed_dim decoder_hidden_size decoder_last_hidden_size decoder_layers dropout
    dropoute dropouth dropouti embed_noise separate_embeddings wdrop""".split()
# of the papers, whose corpora have an end of sentence and an unknown word; fairseq adds two more
PTB, WT2, BILLION, TEXT8 = 10_000, 33_278, 100_000, 27


def settings_of(arch, **given):
    settings = Namespace(**given)
    ARCH_CONFIG_REGISTRY[arch](settings)
    return settings


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


def test_options_are_public():
    own = AWDLSTMLanguageModelConfig.__dataclass_fields__.keys()
    assert sorted(own - HeadOptions.__dataclass_fields__.keys()) == OPTIONS


@pytest.mark.parametrize(
    ("arch", "classes", "published"),
    [
        ("softmax_ptb", PTB, 24_221_600),
        ("softmax_wt2", WT2, 33_556_078),
        ("mos_ptb", PTB, 21_500_620),
        ("mos_wt2", WT2, 34_909_528),
        # through the task: two more rows of the vocabulary matrix, two more biases
        ("softmax_ptb", PTB + 2, 24_221_600 + 2 * 401),
        ("softmax_wt2", WT2 + 2, 33_556_078 + 2 * 401),
        ("mos_ptb", PTB + 2, 21_500_620 + 2 * 281),
        ("mos_wt2", WT2 + 2, 34_909_528 + 2 * 301),
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


def test_the_dictionary_of_the_task_has_two_more_classes(tmp_path):
    lines = [f"word{index} {PTB - index}\n" for index in range(PTB - 2)]
    (tmp_path / "dict.txt").write_text("".join(lines))
    task = tasks.setup_task(configure(tmp_path, "awd_lstm_lm_softmax_ptb").task)
    assert len(task.target_dictionary) == PTB + 2


@pytest.mark.parametrize(("preset", "classes"), [("ptb", PTB), ("wt2", WT2), ("1b", BILLION)])
def test_mixtape_has_the_size_of_mos(preset, classes):
    mixtape, mos = (parameters_of(f"awd_lstm_lm_{t}_{preset}", classes) for t in ("mixtape", "mos"))
    assert mixtape == pytest.approx(mos, rel=0.002)


def test_an_architecture_sets_every_option():
    for token in tokens():
        for preset in PRESETS:
            config = OmegaConf.structured(AWDLSTMLanguageModelConfig)
            ARCH_CONFIG_REGISTRY[f"awd_lstm_lm_{token}{preset}"](config)
            assert all(config[name] is not None for name in OPTIONS)
            once = OmegaConf.to_container(config)
            ARCH_CONFIG_REGISTRY["awd_lstm_lm_softmax_text8"](config)
            assert OmegaConf.to_container(config) == once


@pytest.mark.parametrize(
    ("arch", "want"),
    [
        ("softmax_ptb", {"dropouti": 0.4, "dropouth": 0.25, "dropout": 0.4, "wdrop": 0.5}),
        ("gss_ptb", {"head_gss_c": -1.5, "head_gss_k": 2.5, "head_bias": "true"}),
        ("gss_wt2", {"head_gss_c": -1.5, "head_gss_k": 3.0, "dropouti": 0.65, "dropouth": 0.2}),
        ("mos_ptb", {"head_components": 15, "head_dropout": 0.29, "dropouth": 0.225}),
        ("mos_plif_wt2", {"head_components": 15, "head_dropout": 0.29, "dropouti": 0.55}),
        ("mixtape_ptb", {"head_components": 4, "head_frequent_ratio": 0.1, "head_dropout": 0.29}),
        ("mos_1b", {"head_components": 7, "head_dropout": 0.0, "wdrop": 0.0}),
        ("mixtape_1b", {"head_components": 4, "decoder_hidden_size": 1140}),
        ("mos_text8", {"decoder_layers": 1, "decoder_last_hidden_size": 910}),
    ],
)
def test_architectures_have_the_published_values(arch, want):
    got = vars(settings_of(f"awd_lstm_lm_{arch}"))
    assert want.items() <= got.items()


def test_explicit_options_beat_the_architecture():
    settings = settings_of("awd_lstm_lm_mos_ptb", decoder_hidden_size=77, dropouti=0.0)
    assert (settings.decoder_hidden_size, settings.dropouti) == (77, 0.0)
    assert (settings.decoder_embed_dim, settings.dropouth) == (280, 0.225)


def test_a_softmax_reads_features_as_wide_as_the_embeddings():
    settings = settings_of("awd_lstm_lm_gss_ptb", decoder_embed_dim=200)
    assert settings.decoder_last_hidden_size == 200


def test_another_head_brings_its_own_sizes():
    moved = vars(settings_of("awd_lstm_lm_softmax_wt2", head="mos"))
    assert moved == vars(settings_of("awd_lstm_lm_mos_wt2"))
