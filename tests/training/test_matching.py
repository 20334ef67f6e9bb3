"""Sizes of models: matched ones within 0.5 %, and the published pair."""

from pathlib import Path

import pytest

from highrank_plugins.training import configuration
from highrank_plugins.training.model_size import measure, solve
from tests.cli import highrank, refused

CONF = Path(__file__).parents[2] / "recipes" / "ptb" / "conf"
# whole models, with sizes that fairseq-train takes
TRANSFORMER = {
    "task": "translation", "source_lang": "a", "target_lang": "b", "arch": "transformer_mos",
    "encoder_layers": 1, "decoder_layers": 1, "encoder_embed_dim": 32, "decoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 64, "decoder_ffn_embed_dim": 64, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "head_components": 4, "share_all_embeddings": True,
}  # fmt: skip


def options(name):
    return configuration.load(CONF / f"{name}.yaml").options("train")


def test_parameters_and_compute_equal_values_computed_by_hand():
    """Count a softmax of width d on LSTMs: 4h(in + h) + 8h each, d × M once, its bias."""
    found = measure({**options("small/softmax"), "decoder_embed_dim": 64}, 100)
    lstms = [(64, 128), (128, 128), (128, 64)]
    matrices = sum(4 * h * (d + h) for d, h in lstms)
    assert found.parameters == matrices + sum(8 * h for _, h in lstms) + 64 * 100 + 100
    assert found.compute == 2 * (matrices + 64 * 100)
    low_rank = {"separate_embeddings": True, "head_vocabulary": "low_rank"}  # W once a batch
    again = measure({**options("small/softmax"), "decoder_embed_dim": 64} | low_rank, 100)
    assert again.compute == found.compute and again.parameters > found.parameters


def test_the_matched_pair_of_parthiban_2021_is_found(tmp_path):
    """Find 17.53 from 17.56 million parameters, and the other way round."""
    pair = {"matched_softmax_et": (340, 17_560_880), "matched_mos_et": (280, 17_535_200)}
    for (name, (width, parameters)), other in zip(pair.items(), reversed(pair), strict=True):
        output = tmp_path / f"{name}.yaml"
        words = ["match", f"parthiban2021/{name}", "--to", f"parthiban2021/{other}"]
        done = highrank(*words, "--output", str(output))
        assert done.exit_code == 0, done.output
        assert f"{parameters:,} parameters" in output.read_text()
        train = configuration.load(output).train
        assert train["decoder_embed_dim"] == train["decoder_last_hidden_size"] == width
        assert train["decoder_hidden_size"] == 960


@pytest.mark.parametrize("by", ["parameters", "compute"])
@pytest.mark.parametrize("conf", ["small/mos", "small/mixtape"])
def test_small_models_match_within_half_a_percent(conf, by):
    known, target = options(conf), options("small/softmax")
    match = solve(known, target, by, 3004)
    found = measure({**known, **match.options}, 3004)
    assert abs(found.of(by) / match.target.of(by) - 1) <= 0.005
    assert match.options["decoder_embed_dim"] != known["decoder_embed_dim"]


def test_widths_are_copied_and_a_separate_matrix_gets_the_width_of_the_features():
    known, softmax = options("small/mos"), options("small/softmax")
    wide = {"separate_embeddings": True, "head_embed_dim": 80, "decoder_last_hidden_size": 80}
    assert solve(known, softmax, "width", 100).options == {
        "decoder_embed_dim": 64, "decoder_last_hidden_size": 64, "decoder_hidden_size": 128,
    }  # fmt: skip
    match = solve({**softmax, **wide}, softmax, "parameters", 100)
    assert match.options["head_embed_dim"] == match.options["decoder_last_hidden_size"] < 80
    assert abs(match.deviation("parameters")) <= 0.005


def test_a_transformer_gets_a_width_that_its_heads_divide():
    stated = {n: v for n, v in TRANSFORMER.items() if not n.endswith("attention_heads")}
    big = stated | {"arch": "transformer_mos_wmt_en_de_big"}  # it alone states its heads
    for known, arch, width, heads in (
        (TRANSFORMER, "transformer", 48, 4), (big, "transformer_softmax_wmt_en_de_big", 128, 16),
    ):  # fmt: skip
        softmax = {**known, "arch": arch, "encoder_embed_dim": width, "decoder_embed_dim": width}
        del softmax["head_components"]
        match = solve(known, softmax, "parameters", 500)
        assert abs(match.deviation("parameters")) <= 0.005
        assert match.options["decoder_embed_dim"] % heads == 0
        narrow = softmax | {"encoder_embed_dim": 32, "decoder_embed_dim": 32}
        with pytest.raises(ValueError, match=r"fairseq refuses the sizes of .*: embed_dim must be"):
            solve({**known, "encoder_attention_heads": 5}, narrow, "width", 500)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("small/base --to softmax", "--arch is missing"),
        ("mos --to softmax --free lr_", "--free lr_: not a whole number in block tr"),
        ("mos --to softmax --free head_components", "no sizes are within 0.5%"),
        ("small/softmax --to base --recipe text8", "no such configuration"),
        ("small/softmax --to small/mos --free seed", "the cost does not rise with seed: free"),
    ],
)
def test_models_that_cannot_be_matched_are_refused(words, message):
    refused(message, "match", *words.split())


def test_no_file_from_which_a_configuration_is_read_is_replaced(tmp_path):
    texts = {"base": "train:\n  arch: awd_lstm_lm\n", "own": "base: base.yaml\ntrain: {lr: 1}\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    base, own = (str(tmp_path / f"{name}.yaml") for name in texts)
    for output, *words in (
        (base, "train", "configure", own),
        (own, "match", own, "--to", "small/softmax"),
        (base, "match", own, "--to", "small/softmax"),
        (own, "match", "small/mos", "--to", own),
    ):
        done = highrank(*words, "--output", output)
        assert done.exit_code == 2
        assert f"--output {output}: a configuration is read from this file" in done.output
    assert {name: (tmp_path / f"{name}.yaml").read_text() for name in texts} == texts
