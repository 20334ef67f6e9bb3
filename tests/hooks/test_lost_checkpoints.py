"""Test hooks/lost_checkpoints.py."""

import shutil

import pytest
from fairseq import checkpoint_utils

import highrank_plugins.hooks.lost_checkpoints  # noqa: F401  (applies it)
from tests.compat.conftest import run_training, translation_options


@pytest.fixture
def used_dir(translator, tmp_path):
    """Write a save directory that lost its last checkpoint."""
    shutil.copy(translator, tmp_path / "checkpoint_1_50.pt")
    shutil.copy(translator, tmp_path / "checkpoint_1_100.pt")
    shutil.copy(translator, tmp_path / "checkpoint_best.pt")
    return tmp_path


def test_refuses_to_start_over(data, used_dir):
    with pytest.raises(FileNotFoundError, match=r"checkpoint_last\.pt is missing.*--restore-file"):
        run_training(data, used_dir, *translation_options())


@pytest.mark.parametrize(
    "written", [["1_50"], ["1_50", "best"], ["best"], ["1_50", "best", ".best_loss_3.1"]]
)
def test_goes_on_where_a_first_save_was_cut_off(data, used_dir, written):
    whole = (used_dir / "checkpoint_best.pt").read_bytes()
    for path in used_dir.glob("checkpoint*"):
        path.unlink()
    for name in written:
        (used_dir / f"checkpoint_{name}.pt".replace("_.", ".")).write_bytes(whole)
    state = run_training(data, used_dir, *translation_options(**{"--max-update": 4}))
    assert state["optimizer_history"][-1]["num_updates"] == 4
    assert (used_dir / "checkpoint_last.pt").exists()


def test_stock_starts_over(data, used_dir, stock):
    stock(checkpoint_utils, "load_checkpoint")
    before = (used_dir / "checkpoint_best.pt").read_bytes()
    run_training(data, used_dir, *translation_options(**{"--seed": 2}))
    assert (used_dir / "checkpoint_best.pt").read_bytes() != before


@pytest.mark.parametrize("flag", ["--reset-optimizer", "--reset-dataloader"])
def test_reset_starts_over(data, used_dir, flag):
    assert run_training(data, used_dir, *translation_options(), flag)


def test_restore_file_continues(data, used_dir):
    options = translation_options(**{"--max-update": 4})
    state = run_training(
        data, used_dir, *options, "--restore-file", used_dir / "checkpoint_1_50.pt"
    )
    assert state["optimizer_history"][-1]["num_updates"] == 4


def test_missing_restore_file(data, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"--restore-file nowhere\.pt does not exist"):
        run_training(data, tmp_path, *translation_options(), "--restore-file", "nowhere.pt")


def test_finetuning_counts_its_own_losses(data, tmp_path):
    """--patience had ended the training that it starts from."""
    rising = {"--lr": 0.5, "--lr-scheduler": "fixed", "--patience": 1}
    first = {**rising, "--max-epoch": 9, "--max-update": 1000}
    ended = run_training(data, tmp_path / "a", *translation_options(**first))
    assert ended["extra_state"]["train_iterator"]["epoch"] < 9
    words = ["--finetune-from-model", tmp_path / "a" / "checkpoint_last.pt"]
    again = {"--lr": 1e-3, "--patience": 1, "--max-epoch": 1, "--max-update": 1000}
    finetuned = run_training(data, tmp_path / "b", *translation_options(**again), *words)
    assert finetuned["optimizer_history"][-1]["num_updates"] > 0
