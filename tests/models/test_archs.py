"""Architectures: the stock preset with a head, nothing else; and their names, which are public."""

from argparse import Namespace
from dataclasses import fields

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from omegaconf import OmegaConf

from highrank_plugins.heads import tokens
from highrank_plugins.models import archs
from highrank_plugins.models.archs import ADAPTIVE_OFF, options_of
from highrank_plugins.models.head_options import HeadOptions
from highrank_plugins.models.lstm import LSTMHeadConfig
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


LSTM_OPTIONS = """adaptive_softmax_cutoff decoder_attention decoder_dropout_in decoder_dropout_out
    decoder_embed_dim decoder_embed_path decoder_freeze_embed decoder_hidden_size decoder_layers
    decoder_out_embed_dim dropout encoder_bidirectional encoder_dropout_in encoder_dropout_out
    encoder_embed_dim encoder_embed_path encoder_freeze_embed encoder_hidden_size encoder_layers
    share_all_embeddings share_decoder_input_output_embed""".split()


def ours(model, token, preset):
    return f"{model}_{token}{preset.removeprefix(model)}"


def stock_settings(model, preset):
    stock = CONFIGS[model][0]
    settings = {name: default for name, _, default, _ in options_of(stock)} if stock else {}
    chosen = Namespace()
    ARCH_CONFIG_REGISTRY[preset](chosen)
    return settings | vars(chosen)


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


def test_tokens_are_public():
    assert sorted(tokens()) == TOKENS
    for model, preset in PRESETS:
        for token in TOKENS:
            assert ours(model, token, preset) in ARCH_MODEL_REGISTRY
    names = {ours("lstm", token, preset) for token in TOKENS for preset in LSTM_PRESETS}
    assert set(ARCH_MODEL_INV_REGISTRY["lstm_highrank"]) == names | {"lstm_highrank"}


def test_options_are_public():
    assert sorted(set(HeadOptions.__dataclass_fields__) - {"_name"}) == OPTIONS
    own = LSTMHeadConfig.__dataclass_fields__.keys() - HeadOptions.__dataclass_fields__.keys()
    assert sorted(own) == LSTM_OPTIONS


@pytest.mark.parametrize("name", ["adaptive_softmax_cutoff", "adaptive_input"])
def test_adaptive_softmax_and_input_are_refused(name):
    settings = Namespace(**{name: [100, 200]})
    with pytest.raises(ValueError, match="--" + name.replace("_", "-")):
        ARCH_CONFIG_REGISTRY["transformer_lm_mos_gpt2_tiny"](settings)


def test_presets_with_adaptive_softmax_say_once_that_it_is_off(caplog):
    archs.log_once.cache_clear()
    with caplog.at_level("INFO", logger=archs.logger.name):
        for token in ("mos", "moc"):
            ARCH_CONFIG_REGISTRY[f"transformer_lm_{token}_wiki103"](Namespace())
    assert len(caplog.messages) == 1
    assert "adaptive_softmax_cutoff" in caplog.messages[0]


def test_explicit_options_beat_the_preset():
    settings = Namespace(decoder_layers=3, encoder_normalize_before=False)
    ARCH_CONFIG_REGISTRY["transformer_mos_wmt_en_de_big_t2t"](settings)
    assert settings.decoder_layers == 3
    assert settings.encoder_normalize_before is False
    assert settings.decoder_normalize_before is True
    settings = Namespace(decoder_hidden_size=77, head_bias="false")
    ARCH_CONFIG_REGISTRY["lstm_mixtape_wiseman_iwslt_de_en"](settings)
    assert (settings.decoder_hidden_size, settings.decoder_embed_dim) == (77, 256)
    assert (settings.head_bias, settings.head_frequent_ratio) == ("false", 0.5)
