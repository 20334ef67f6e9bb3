"""Sizes of models: matched ones within 0.5 %, the published pair, and space on the disk."""

import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from highrank_plugins.common.names import option_name
from highrank_plugins.training import configuration
from highrank_plugins.training.command_line import by_option
from highrank_plugins.training.model_size import (
    check_space,
    measure,
    solve,
    still_needed,
    training_space,
)
from tests.cli import highrank
from tests.trainings import OUR_LOSS, task_and_shape, train

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


STATED = {n: v for n, v in TRANSFORMER.items() if not n.endswith("attention_heads")}


@pytest.mark.parametrize(
    ("known", "arch", "width", "heads"),
    [
        (TRANSFORMER, "transformer", 48, 4),
        # only the architecture states its heads
        ({**STATED, "arch": "transformer_mos_wmt_en_de_big"}, "transformer_softmax_wmt_en_de_big",
         128, 16),
    ],
)  # fmt: skip
def test_a_transformer_gets_a_width_that_its_heads_divide(known, arch, width, heads):
    softmax = {**known, "arch": arch, "encoder_embed_dim": width, "decoder_embed_dim": width}
    del softmax["head_components"]
    match = solve(known, softmax, "parameters", 500)
    assert abs(match.deviation("parameters")) <= 0.005
    assert match.options["decoder_embed_dim"] % heads == 0
    narrow = {"encoder_embed_dim": 32, "decoder_embed_dim": 32}
    with pytest.raises(ValueError, match=r"fairseq refuses the sizes of .*: embed_dim must be"):
        solve({**known, "encoder_attention_heads": 5}, softmax | narrow, "width", 500)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["moss", "--to", "softmax"], "no such configuration"),
        (["small/base", "--to", "softmax"], "--arch is missing"),
        (["mos", "--to", "softmax", "--recipe", "pbt"], "did you mean 'ptb'"),
        (["mos", "--to", "softmax", "--free", "lr_"], "--free lr_: not a whole number in block tr"),
        (["mos", "--to", "softmax", "--free", "head_components"], "no sizes are within 0.5%"),
        (["small/softmax", "--to", "base", "--recipe", "text8"], "no such configuration"),
    ],
)
def test_models_that_cannot_be_matched_are_refused(words, message):
    done = highrank("match", *words)
    assert done.exit_code == 2 and message in done.output


def test_without_a_file_the_match_is_printed():
    done = highrank("match", "mos", "--to", "softmax")
    tree = yaml.safe_load(done.output)
    assert tree["base"].endswith("recipes/ptb/conf/small/mos.yaml") and tree["train"]


KEEP = {"save_interval_updates": 2, "keep_interval_updates": 2, "keep_last_epochs": 1}


def of_training(arch: str) -> dict[str, object]:
    """Return `--flag value --bare` of a training run as a configuration has it."""
    rows = by_option([str(word) for word in (*task_and_shape(arch), *OUR_LOSS)])
    options = {option_name(row[0]): row[1] if row[1:] else True for row in rows}
    return options | {"arch": arch} | KEEP


def test_the_estimate_is_one_checkpoint_above_the_space_taken(mt_data, tmp_path):
    arch = "transformer_mixtape_tiny"
    keep = [word for name, value in KEEP.items() for word in (f"--{name.replace('_', '-')}", value)]
    train(mt_data, tmp_path / "save", arch, 6, *keep)
    sizes = [path.stat().st_size for path in (tmp_path / "save").glob("*.pt")]
    assert len(sizes) == 4  # two of updates, the best, the last
    space = training_space(of_training(arch), mt_data)
    assert space == pytest.approx(5 * max(sizes), rel=0.15)  # and some settings


@pytest.mark.parametrize("arch", ["lstm_mos", "transformer_lm_gss", "awd_lstm_lm_mos"])
def test_every_kind_of_model_has_a_size(mt_data, lm_data, arch):
    data = lm_data if "_lm_" in arch else mt_data
    every_epoch = of_training(arch) | {"no_epoch_checkpoints": False, "keep_last_epochs": -1}
    space = training_space(of_training(arch), data)
    assert space > 5 * 12 * 1000
    assert training_space(every_epoch, data) == space * 6 // 5


def test_the_disk_must_hold_the_checkpoints_to_come(tmp_path):
    assert still_needed(1000, tmp_path) == 1000
    (tmp_path / "checkpoint_last.pt").write_bytes(bytes(300))
    (tmp_path / "checkpoint_best.pt").hardlink_to(tmp_path / "checkpoint_last.pt")
    assert still_needed(1000, tmp_path) == 700  # a second link takes no space
    (tmp_path / "a.pt").write_bytes(bytes(600))
    assert still_needed(1000, tmp_path) == 300


def test_a_full_disk_is_refused(lm_data, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Namespace(free=1000))
    with pytest.raises(ValueError, match=r"kB are needed on the disk of .*, 1\.0 kB are free"):
        check_space(of_training("transformer_lm_gss"), str(lm_data), tmp_path)
