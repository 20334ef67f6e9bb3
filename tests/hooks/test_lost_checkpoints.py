"""A lost or damaged last checkpoint: the newest whole one is taken, or none."""

import os
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from highrank_plugins.hooks.training_loop import choose
from tests.compat.conftest import run_training, translation_options


@pytest.fixture
def used_dir(translator, tmp_path):
    """Write a save directory that lost its last checkpoint."""
    for name in "1_50", "1_100", "best":
        shutil.copy(translator, tmp_path / f"checkpoint_{name}.pt")
    return tmp_path


def damage(path) -> None:
    """Flip a bit of the description of all tensors."""
    content = bytearray(path.read_bytes())
    content[content.index(b"optimizer_history") + 3] ^= 1
    path.write_bytes(content)


def updates(state) -> int:
    return state["optimizer_history"][-1]["num_updates"]


def save_again(path, **values) -> None:
    """Write a checkpoint with other values."""
    torch.save(torch.load(path, weights_only=True) | values, path)


def chosen(folder, **options) -> str:
    """Return the name of the checkpoint from which a run would resume."""
    none = {"reset_dataloader": False, "reset_optimizer": False, "continue_once": None}
    cfg = {"save_dir": str(folder), "no_save_optimizer_state": False, **none, **options}
    return Path(choose(Namespace(**cfg), "")).name


def test_copying_does_not_change_which_checkpoint_is_the_newest(used_dir, caplog):
    save_again(used_dir / "checkpoint_1_50.pt", optimizer_history=[{"num_updates": 1}])
    (used_dir / "checkpoint_best.pt").unlink()
    os.utime(used_dir / "checkpoint_1_100.pt", (0, 0))
    assert chosen(used_dir) == "checkpoint_1_100.pt"
    assert "Resuming from" in caplog.text and "checkpoint_1_100.pt, the newest" in caplog.text


def test_a_run_does_not_resume_from_an_averaged_model(used_dir):
    save_again(used_dir / "checkpoint_best.pt", last_optimizer_state=None)
    damage(used_dir / "checkpoint_1_100.pt")
    (used_dir / "checkpoint_1_50.pt").rename(used_dir / "elsewhere")
    with pytest.raises(ValueError, match=r"holds no undamaged .*best\.pt has no state of the opt"):
        chosen(used_dir)
    (used_dir / "elsewhere").rename(used_dir / "checkpoint_1_50.pt")
    assert chosen(used_dir) == "checkpoint_1_50.pt"


def lose_target(path) -> None:
    """Replace a file by a link to a missing one."""
    path.unlink()
    path.symlink_to("lost.pt")


@pytest.mark.parametrize("spoil", [damage, lambda path: path.write_bytes(b""), lose_target, None])
def test_a_run_resumes_from_the_newest_undamaged_checkpoint(data, used_dir, caplog, spoil):
    best, last = used_dir / "checkpoint_best.pt", used_dir / "checkpoint_last.pt"
    if spoil:
        spoil(used_dir / "checkpoint_1_100.pt")
        spoil(best)
        shutil.copy(best, last, follow_symlinks=False)
    name = f"checkpoint_{'1_50' if spoil else 'best'}.pt"
    if spoil is damage:
        state = run_training(data, used_dir, *translation_options(**{"--max-update": 4}))
        assert updates(state) == 4
    else:
        assert chosen(used_dir) == name
    assert f"{name}, the newest undamaged checkpoint: " in caplog.text
    assert "checkpoint_last.pt is " in caplog.text


def test_without_an_undamaged_checkpoint_a_run_does_not_start_over(tmp_path, translator):
    for name in ("best", "last"):
        shutil.copy(translator, tmp_path / f"checkpoint_{name}.pt")
        damage(tmp_path / f"checkpoint_{name}.pt")
    message = r"holds no undamaged.*best\.pt is damaged.*move these away"
    for reset in {}, {"reset_optimizer": True, "reset_dataloader": True}:
        with pytest.raises(ValueError, match=message):
            chosen(tmp_path, **reset)
    (tmp_path / "new").mkdir()  # it looks new, because it has no other checkpoints
    (tmp_path / "new" / "checkpoint_last.pt").symlink_to("lost.pt")
    message = r"checkpoint_last\.pt is a link to lost\.pt, which is missing.*move these away"
    with pytest.raises(ValueError, match=message):
        chosen(tmp_path / "new")


@pytest.mark.parametrize("written", ["checkpoint_1_50.pt", "checkpoint.best_loss_3.1.pt"])
def test_training_resumes_after_an_interrupted_first_save(tmp_path, translator, written):
    shutil.copy(translator, tmp_path / written)
    assert chosen(tmp_path) == written


@pytest.mark.parametrize("option", ["reset_optimizer", "reset_dataloader"])
def test_a_reset_option_starts_over(used_dir, option):
    assert chosen(used_dir, **{option: True}) == "checkpoint_last.pt"


def test_restore_file_resumes_from_the_named_checkpoint(data, used_dir):
    words = [*translation_options(**{"--max-update": 4}), "--restore-file"]
    with pytest.raises(FileNotFoundError, match=r"--restore-file nowhere\.pt does not exist"):
        run_training(data, used_dir, *words, "nowhere.pt")
    for option in "--restore-file", "--finetune-from-model":
        with pytest.raises(ValueError, match=f"{option} {used_dir} is a folder; name a checkpoint"):
            run_training(data, used_dir / "new", *translation_options(), option, used_dir)
    assert updates(run_training(data, used_dir, *words, used_dir / "checkpoint_1_50.pt")) == 4


def test_finetuning_counts_only_its_own_losses(data, tmp_path):
    """--patience had ended the training run that it starts from."""
    rising = {"--lr": 0.5, "--lr-scheduler": "fixed", "--patience": 1}
    first = {**rising, "--max-epoch": 9, "--max-update": 1000}
    ended = run_training(data, tmp_path / "a", *translation_options(**first))
    assert ended["extra_state"]["train_iterator"]["epoch"] < 9
    words = ["--finetune-from-model", tmp_path / "a" / "checkpoint_last.pt"]
    again = {"--lr": 1e-3, "--patience": 1, "--max-epoch": 1, "--max-update": 1000}
    finetuned = run_training(data, tmp_path / "b", *translation_options(**again), *words)
    assert finetuned["optimizer_history"][-1]["num_updates"] > 0
