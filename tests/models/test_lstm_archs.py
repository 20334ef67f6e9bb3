"""Architectures of the encoder-decoder LSTM: stock's presets with a head, and public names."""

from argparse import Namespace

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_INV_REGISTRY
from omegaconf import OmegaConf

from highrank_plugins.heads.tokens import tokens
from highrank_plugins.models.archs import ADAPTIVE_OFF
from highrank_plugins.models.head_options import HeadOptions
from highrank_plugins.models.lstm import LSTMHeadConfig

PRESETS = ["", "_luong_wmt_en_de", "_wiseman_iwslt_de_en"]
OPTIONS = """adaptive_softmax_cutoff decoder_attention decoder_dropout_in decoder_dropout_out
    decoder_embed_dim decoder_embed_path decoder_freeze_embed decoder_hidden_size decoder_layers
    decoder_out_embed_dim dropout encoder_bidirectional encoder_dropout_in encoder_dropout_out
    encoder_embed_dim encoder_embed_path encoder_freeze_embed encoder_hidden_size encoder_layers
    share_all_embeddings share_decoder_input_output_embed""".split()


def test_names_are_public():
    names = {f"lstm_{token}{preset}" for token in tokens() for preset in PRESETS}
    assert set(ARCH_MODEL_INV_REGISTRY["lstm_highrank"]) == names | {"lstm_highrank"}


def test_options_are_public():
    own = LSTMHeadConfig.__dataclass_fields__.keys()
    assert sorted(own - HeadOptions.__dataclass_fields__.keys()) == OPTIONS


@pytest.mark.parametrize("preset", PRESETS)
def test_an_arch_equals_its_stock_preset_except_for_the_head(preset):
    stock = Namespace()
    ARCH_CONFIG_REGISTRY[f"lstm{preset}"](stock)
    want = vars(stock) | {"adaptive_softmax_cutoff": ADAPTIVE_OFF["adaptive_softmax_cutoff"]}
    for token, head in tokens().items():
        config = OmegaConf.structured(LSTMHeadConfig)
        ARCH_CONFIG_REGISTRY[f"lstm_{token}{preset}"](config)
        got = OmegaConf.to_container(config, enum_to_str=True)
        assert {name: got[name] for name in OPTIONS} == {name: want[name] for name in OPTIONS}
        assert {**head, "head_bias": "true"}.items() <= got.items()


def test_explicit_options_beat_the_preset():
    settings = Namespace(decoder_hidden_size=77, head_bias="false")
    ARCH_CONFIG_REGISTRY["lstm_mixtape_wiseman_iwslt_de_en"](settings)
    assert (settings.decoder_hidden_size, settings.decoder_embed_dim) == (77, 256)
    assert (settings.head_bias, settings.head_frequent_ratio) == ("false", 0.5)
