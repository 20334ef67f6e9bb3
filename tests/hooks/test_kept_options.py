"""Test hooks/kept_options.py: a checkpoint keeps its number of frequent classes."""

import logging
from pathlib import Path
from shlex import split

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf, open_dict

from highrank_plugins.inference.loading import load_model
from highrank_plugins.reports.model_folder import export_model, import_model
from tests.compat.conftest import DECODER, TRANSFORMER, run_training

MIXTAPE = ["--arch", "transformer_mixtape", *TRANSFORMER, *DECODER]
MIXTAPE += split("--max-tokens 60 --dropout 0 --head-gate-dim 2 --head-components 2")
GATES = "decoder.output_projection.gate_embed"
EXACT, ROUNDED = 12, 10  # of 24 words, by a multiple of 5


def number_of_frequent(state: dict) -> int:
    return len(state["model"][GATES])


@pytest.fixture(scope="module")
def old(data, tmp_path_factory) -> Path:
    """Return a checkpoint of a version without --head-frequent-multiple."""
    folder = tmp_path_factory.mktemp("old")
    state = run_training(data, folder, *MIXTAPE, "--max-update", 1, "--head-frequent-multiple", 1)
    assert number_of_frequent(state) == EXACT
    with open_dict(state["cfg"]):
        del state["cfg"].model.head_frequent_multiple
    path = folder / "checkpoint_last.pt"
    torch.save(torch.load(path, weights_only=True) | {"cfg": plain(state["cfg"])}, path)
    return path


def plain(cfg) -> dict:
    return OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)


def train_on(data, folder, *words) -> dict:
    """Train with an option that sizes new models in another way, as today's default does."""
    return run_training(data, folder, *MIXTAPE, "--head-frequent-multiple", 5, *words)


def test_a_new_run_rounds_the_number_of_frequent_classes(data, tmp_path):
    state = train_on(data, tmp_path, "--max-update", 1)
    assert number_of_frequent(state) == ROUNDED
    assert state["cfg"].model.head_frequent_multiple == 5


def test_an_old_run_resumes_with_its_number_of_frequent_classes(data, old, tmp_path, caplog):
    (tmp_path / old.name).write_bytes(old.read_bytes())
    caplog.set_level(logging.INFO, "highrank_plugins")
    state = train_on(data, tmp_path, "--max-update", 2)
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert number_of_frequent(state) == EXACT
    assert "keeping --head-frequent-multiple 1, as in the checkpoint" in caplog.text
    # which the next checkpoint says itself
    assert state["cfg"].model.head_frequent_multiple == 1
    assert number_of_frequent(train_on(data, tmp_path, "--max-update", 3)) == EXACT


@pytest.mark.parametrize("option", ["--finetune-from-model", "--restore-file"])
def test_a_run_that_starts_from_an_old_one_keeps_its_number(option, data, old, tmp_path):
    state = train_on(data, tmp_path, "--max-update", 2, option, old)
    assert number_of_frequent(state) == EXACT


def test_an_old_checkpoint_generates_with_its_number(data, old):
    (model,), _ = checkpoint_utils.load_model_ensemble([str(old)], {"data": str(data)})
    assert model.head.frequent == EXACT
    assert load_model(old, None).head.frequent == EXACT


def test_an_exported_folder_keeps_the_number(data, old, tmp_path):
    export_model(old, tmp_path / "folder", data, licence="mit")
    import_model(tmp_path / "folder", tmp_path / "again.pt")
    assert load_model(tmp_path / "again.pt", str(data)).head.frequent == EXACT


def test_a_damaged_checkpoint_is_refused_where_it_is_loaded(data, old, tmp_path):
    (tmp_path / old.name).write_bytes(old.read_bytes()[:-100])
    with pytest.raises(ValueError, match="no undamaged checkpoint"):
        train_on(data, tmp_path, "--max-update", 2)
