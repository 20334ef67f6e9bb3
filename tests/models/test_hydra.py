"""`fairseq-hydra-train` with YAML trains what the command line trains."""

import pytest
import yaml

from tests.fairseq_cli import REPOSITORY, run
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


@pytest.mark.parametrize("arch", CASES)
def test_yaml_trains_what_the_command_line_trains(arch, request, tmp_path):
    task, shape, data, head = CASES[arch]
    data = request.getfixturevalue(data)
    settings = config(arch, task, shape, data, tmp_path / "yaml", head)
    (tmp_path / "training.yaml").write_text("# @package _group_\n" + yaml.safe_dump(settings))
    where = ["--config-dir", tmp_path, "--config-name", "training"]
    run("hydra-train", *where, f"hydra.run.dir={tmp_path}/run")

    train(data, tmp_path / "line", arch, 4, "--label-smoothing", "0.1", *as_words(head))
    assert same(parameters(last(tmp_path / "yaml")), parameters(last(tmp_path / "line")))
