"""`fairseq-hydra-train` with YAML trains what the command line trains."""

import pytest
import yaml

from tests.fairseq_cli import REPOSITORY, run
from tests.stream_corpus import train_streams
from tests.trainings import (
    NARROW,
    NARROW_AWD,
    NARROW_LM,
    NARROW_LSTM,
    last,
    parameters,
    same,
    train,
)

TRANSLATION = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
LANGUAGE_MODEL = {"_name": "language_modeling", "tokens_per_sample": 32}
CASES = {
    "transformer_mixtape_tiny": (TRANSLATION, NARROW, "mt_data", {"head_gate_dim": 7}),
    "transformer_lm_mos_gpt2_tiny": (LANGUAGE_MODEL, NARROW_LM, "lm_data", {"head_bias": True}),
    "awd_lstm_lm_mos_wt2": (LANGUAGE_MODEL, NARROW_AWD, "lm_data", {"head_components": 3}),
    "lstm_mixtape_wiseman_iwslt_de_en": (TRANSLATION, NARROW_LSTM, "mt_data", {"head_gate_dim": 7}),
    "transformer_mos_plif": (TRANSLATION, NARROW, "mt_data", {"head": "moc"}),
    "transformer_softmax_tiny": (
        *(TRANSLATION, NARROW, "mt_data"),
        {"rel_pos_clip": 3, "rel_pos_in": "encoder"},
    ),
}


def as_words(options):
    return [x for k, v in options.items() for x in ("--" + k.replace("_", "-"), str(v))]


def as_options(words):
    """Return `["--layers", "2"]` as `{"layers": 2}`."""
    names = [w.removeprefix("--").replace("-", "_") for w in words[::2]]
    return dict(zip(names, map(int, words[1::2]), strict=True))


def config(arch, task, shape, data, save_dir, head):
    return {
        "common": {"user_dir": str(REPOSITORY / "highrank_plugins"), "seed": 3},
        "task": task | {"data": str(data)},
        "model": {"_name": arch, "dropout": 0.1} | as_options(shape) | head,
        "criterion": {"_name": "highrank_cross_entropy", "label_smoothing": 0.1},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
        "optimization": {"lr": [0.005], "max_update": 4},
        "dataset": {"max_tokens": 500, "num_workers": 0, "required_batch_size_multiple": 1},
        "checkpoint": {"save_dir": str(save_dir), "no_epoch_checkpoints": True},
        "distributed_training": {"distributed_world_size": 1},
    }


def run_yaml(settings, folder):
    (folder / "training.yaml").write_text("# @package _group_\n" + yaml.safe_dump(settings))
    where = ["--config-dir", folder, "--config-name", "training"]
    run("hydra-train", *where, f"hydra.run.dir={folder}/run")


@pytest.mark.parametrize("arch", CASES)
def test_yaml_trains_what_the_command_line_trains(arch, request, tmp_path):
    task, shape, data, head = CASES[arch]
    data = request.getfixturevalue(data)
    settings = config(arch, task, shape, data, tmp_path / "yaml", head)
    run_yaml(settings, tmp_path)
    train(data, tmp_path / "line", arch, 4, "--label-smoothing", "0.1", *as_words(head))
    assert same(parameters(last(tmp_path / "yaml")), parameters(last(tmp_path / "line")))


def test_yaml_trains_on_streams_what_the_command_line_trains(stream_data, tmp_path):
    shape = "--decoder-embed-dim 8 --decoder-hidden-size 12 --decoder-last-hidden-size 8".split()
    rates = {"dropout": 0.2, "dropouti": 0.1, "dropouth": 0.1, "dropoute": 0.1, "wdrop": 0.2}
    task = {"_name": "bptt_language_modeling", "bptt": 8}
    model = {"head_components": 2, "decoder_layers": 2, **rates}
    settings = config("awd_lstm_lm_mos", task, shape, stream_data, tmp_path / "yaml", model)
    settings["common"]["seed"] = 5
    run_yaml(settings | {
        "criterion": {"_name": "bptt_cross_entropy", "ar_alpha": 2, "tar_beta": 1},
        "optimizer": {"_name": "nt_asgd", "weight_decay": 1.2e-6, "asgd_at_epoch": 1},
        "optimization": {"lr": [2.0], "clip_norm": 0.25, "max_epoch": 2},
        "dataset": {"batch_size": 4, "num_workers": 0},
    }, tmp_path)  # fmt: skip
    options = ["--max-epoch", 2, "--asgd-at-epoch", 1, "--head-components", 2]
    train_streams(stream_data, tmp_path / "line", *options, arch="awd_lstm_lm_mos")
    assert same(parameters(last(tmp_path / "yaml")), parameters(last(tmp_path / "line")))
