"""`fairseq-hydra-train` with YAML trains on streams what the command line trains."""

import yaml

from tests.fairseq_cli import REPOSITORY, run
from tests.stream_corpus import train_streams
from tests.trainings import last, parameters, same


def config(data, save_dir):
    return {
        "common": {"user_dir": str(REPOSITORY / "highrank_plugins"), "seed": 5},
        "task": {"_name": "bptt_language_modeling", "data": str(data), "bptt": 8},
        "model": {
            "_name": "awd_lstm_lm_mos",
            "head_components": 2,
            "decoder_embed_dim": 8,
            "decoder_hidden_size": 12,
            "decoder_last_hidden_size": 8,
            "decoder_layers": 2,
            "dropout": 0.2,
            "dropouti": 0.1,
            "dropouth": 0.1,
            "dropoute": 0.1,
            "wdrop": 0.2,
        },
        "criterion": {"_name": "bptt_cross_entropy", "ar_alpha": 2, "tar_beta": 1},
        "optimizer": {"_name": "nt_asgd", "weight_decay": 1.2e-6, "asgd_at_epoch": 1},
        "lr_scheduler": {"_name": "fixed"},
        "optimization": {"lr": [2.0], "clip_norm": 0.25, "max_epoch": 2},
        "dataset": {"batch_size": 4, "num_workers": 0},
        "checkpoint": {"save_dir": str(save_dir), "no_epoch_checkpoints": True},
        "distributed_training": {"distributed_world_size": 1},
    }


def test_yaml_trains_what_the_command_line_trains(stream_data, tmp_path):
    settings = yaml.safe_dump(config(stream_data, tmp_path / "yaml"))
    (tmp_path / "streams.yaml").write_text("# @package _group_\n" + settings)
    where = ["--config-dir", tmp_path, "--config-name", "streams"]
    run("hydra-train", *where, f"hydra.run.dir={tmp_path}/run")
    options = ["--max-epoch", 2, "--asgd-at-epoch", 1, "--head-components", 2]
    train_streams(stream_data, tmp_path / "line", *options, arch="awd_lstm_lm_mos")
    first, second = (parameters(last(tmp_path / name)) for name in ("yaml", "line"))
    assert same(first, second)
