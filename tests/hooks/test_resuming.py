"""A --save-dir has one run at a time, resumes from its newest whole checkpoint, and exactly.

It resumes with the same options and data, or says what has changed.
"""

import os
import shutil
from argparse import Namespace
from pathlib import Path
from shlex import split

import pytest
import torch

from highrank_plugins.common import folders
from highrank_plugins.common.files import write_sums
from highrank_plugins.common.folders import locked
from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.training_loop import choose
from tests.compat.conftest import DECODER, run_training, train, transformer, updates
from tests.held_lock import held_elsewhere
from tests.trainings import last, same


def test_the_second_run_is_refused_and_a_killed_one_leaves_no_lock(data, tmp_path):
    with held_elsewhere(tmp_path, "locked(path)") as other:
        name = rf"process {other.pid} on .*choose another"
        with pytest.raises(UserError, match=rf"is in use by another training run \({name}"):
            train(data, tmp_path, max_update=1)
        assert [path.name for path in tmp_path.iterdir()] == ["training.lock"]
        other.kill()
        other.wait()
    train(data, tmp_path, max_update=1)
    assert last(tmp_path).exists()


def test_a_users_file_with_the_name_of_an_incomplete_checkpoint_is_kept(tmp_path):
    part = tmp_path / "checkpoint1.pt.tmp"
    part.write_text("precious")
    message = r"checkpoint1\.pt\.tmp was not written by a training run of this folder.*move it away"
    with pytest.raises(UserError, match=message), locked(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [part.name]
    part.unlink()
    with locked(tmp_path):
        part.write_text("left by a kill")
    with locked(tmp_path):
        assert not part.exists()


def test_a_refused_run_leaves_a_folder_as_it_was(data, tmp_path):
    victim = tmp_path / "file"
    victim.write_text("precious")
    for name in "new/exp", ".":
        with pytest.raises(UserError, match="--head-components must be at least 1"):
            train(data, tmp_path / name, arch="transformer_mos", head_components=0)
    message = r"--save-dir .*file/exp cannot be written \(Not a directory\): choose another"
    with pytest.raises(UserError, match=message):
        train(data, victim / "exp")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    lock = tmp_path / "training.lock"
    for put in lambda: lock.symlink_to(victim), lambda: os.mkfifo(lock):
        put()
        linked = "is a symbolic link, a pipe or a device in place of one of our files: remove it"
        with pytest.raises(UserError, match=f"training.lock {linked}"):
            train(data, tmp_path)
        lock.unlink()
    os.mkfifo(best := tmp_path / "checkpoint_best.pt")  # which a save would wait for
    with pytest.raises(UserError, match=r"checkpoint_best\.pt is a pipe or a device; a file"):
        train(data, tmp_path)
    assert victim.read_text() == "precious" and {*tmp_path.iterdir()} == {victim, best}


def test_a_removed_lock_file_is_created_again(tmp_path, monkeypatch):
    path, stock = tmp_path / "training.lock", folders.fcntl.lockf

    def lock(*args):
        if not removed:
            removed.append(path.unlink())
        stock(*args)

    removed: list[None] = []
    monkeypatch.setattr(folders.fcntl, "lockf", lock)
    with locked(tmp_path) as is_locked:
        assert is_locked and removed
        assert path.read_text().startswith("process ")


@pytest.fixture
def used_dir(translator, tmp_path):
    """Write a save directory that lost its last checkpoint."""
    for name in "1_50", "1_100", "best":
        shutil.copy(translator, tmp_path / f"checkpoint_{name}.pt")
    return tmp_path


def damage(path) -> None:  # a bit of the description of all tensors
    content = bytearray(path.read_bytes())
    content[content.index(b"optimizer_history") + 3] ^= 1
    path.write_bytes(content)


def save_again(path, **values) -> None:
    torch.save(torch.load(path, weights_only=True) | values, path)


def chosen(folder, **options) -> str:
    """Return the name of the checkpoint from which a run would resume."""
    none = {"reset_dataloader": False, "reset_optimizer": False, "continue_once": None}
    cfg = {"save_dir": str(folder), "no_save_optimizer_state": False, **none, **options}
    return Path(choose(Namespace(**cfg))).name


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
        state = train(data, used_dir, max_update=4)
        assert updates(state) == 4
    else:
        assert chosen(used_dir) == name
    assert f"{name}, the newest undamaged checkpoint: " in caplog.text
    assert "checkpoint_last.pt is " in caplog.text


def test_a_run_that_lost_its_last_checkpoint_resumes_or_does_not_start_over(
    used_dir, translator, caplog
):
    newest, other, best = (used_dir / f"checkpoint_{name}.pt" for name in ("1_100", "1_50", "best"))
    save_again(other, optimizer_history=[{"num_updates": 1}])
    save_again(best, last_optimizer_state=None)  # an averaged model
    os.utime(newest, (0, 0))  # as copying may do
    assert chosen(used_dir) == newest.name
    assert f"Resuming from {newest}, the newest" in caplog.text
    for option in "reset_optimizer", "reset_dataloader":
        assert chosen(used_dir, **{option: True}) == "checkpoint_last.pt"
    damage(newest)
    assert chosen(used_dir) == other.name
    damage(other)
    with pytest.raises(ValueError, match=r"holds no undamaged .*best\.pt has no state of the opt"):
        chosen(used_dir)
    damage(best)
    shutil.copy(best, used_dir / "checkpoint_last.pt")
    message = r"holds no undamaged.*last\.pt is damaged.*best\.pt is damaged.*move these away"
    for reset in {}, {"reset_optimizer": True, "reset_dataloader": True}:
        with pytest.raises(ValueError, match=message):
            chosen(used_dir, **reset)
    (used_dir / "new").mkdir()  # it looks new, because it has no other checkpoints
    (used_dir / "new" / "checkpoint_last.pt").symlink_to("lost.pt")
    message = r"checkpoint_last\.pt is a link to lost\.pt, which is missing.*move these away"
    with pytest.raises(ValueError, match=message):
        chosen(used_dir / "new")
    first = shutil.copy(translator, used_dir / "new" / "checkpoint.best_loss_3.1.pt")
    (used_dir / "new" / "checkpoint_last.pt").unlink()  # an interrupted first save
    assert chosen(used_dir / "new") == first.name


def test_restore_file_resumes_from_the_named_checkpoint(data, used_dir):
    with pytest.raises(FileNotFoundError, match=r"--restore-file nowhere\.pt does not exist"):
        train(data, used_dir, restore_file="nowhere.pt")
    for option in "--restore-file", "--finetune-from-model":
        with pytest.raises(ValueError, match=f"{option} {used_dir} is a folder; name a checkpoint"):
            train(data, used_dir / "new", option, used_dir)
    named = used_dir / "checkpoint_1_50.pt"
    assert updates(train(data, used_dir, max_update=4, restore_file=named)) == 4


def test_finetuning_counts_only_its_own_losses(data, tmp_path):
    """--patience had ended the training run that it starts from."""
    more = {"patience": 1, "max_update": 1000}
    ended = train(data, tmp_path / "a", lr=0.5, lr_scheduler="fixed", max_epoch=9, **more)
    assert ended["extra_state"]["train_iterator"]["epoch"] < 9
    start = last(tmp_path / "a")
    finetuned = train(data, tmp_path / "b", finetune_from_model=start, max_epoch=1, **more)
    assert updates(finetuned) > 0


# 62 sentences make 8 batches an epoch
COMMON = split("--batch-size 8 --disable-validation")
TRANSLATION = [*transformer(), *COMMON]
MODELING = split("--task language_modeling --arch transformer_lm --tokens-per-sample 6")
LANGUAGE_MODEL = [*MODELING, *DECODER, *COMMON, "--dropout", 0]
UPDATES = 24


@pytest.mark.parametrize(
    ("part", "options", "stops"),
    [("", TRANSLATION, (11, 16)), ("lm", LANGUAGE_MODEL, (11,))],  # 11 lies within epoch 2
)
def test_a_resumed_run_equals_an_uninterrupted_one(part, options, stops, data, tmp_path):
    def weights(name: str, bound: int) -> dict:
        return run_training(data / part, tmp_path / name, *options, "--max-update", bound)["model"]

    whole = weights("whole", UPDATES)
    for stop in stops:
        weights(str(stop), stop)
        assert same(weights(str(stop), UPDATES), whole)


EMA = [*split("--store-ema --ema-decay 0.5 --ema-fp32 --save-interval-updates 2")]


def test_averages_resume_and_start_from_the_weights_of_a_checkpoint(data, translator, tmp_path):
    often = [*EMA, "--ema-update-freq", 3]
    unbroken = train(data, tmp_path / "a", *often, max_update=4)
    middle = tmp_path / "a" / "checkpoint_1_2.pt"
    resumed = train(data, tmp_path / "b", *often, max_update=4, restore_file=middle)
    assert same(unbroken["model"], resumed["model"])
    assert not same(unbroken["model"], unbroken["extra_state"]["ema"])
    for averages in ("ema", "ema_fp32_params"):
        assert same(unbroken["extra_state"][averages], resumed["extra_state"][averages])
    start = torch.load(translator, weights_only=True)["model"]
    state = train(data, tmp_path / "c", *EMA, max_update=1, finetune_from_model=translator)
    assert not same(start, state["model"])
    for name, average in state["extra_state"]["ema"].items():
        if "version" not in name:  # fairseq does not average it
            torch.testing.assert_close(average, (start[name] + state["model"][name]) / 2)


def test_a_run_with_other_options_is_refused(data, translator, tmp_path):
    before = translator.read_bytes()
    for words, message in (
        ("--arch transformer_tiny", "--arch was transformer, is now transformer_tiny"),
        ("--lr 0.5", r"--lr was \[0\.01\], is now \[0\.5\]"),
        ("--seed 7", "--seed was 1, is now 7"),
        ("--criterion label_smoothed_cross_entropy", "--criterion was cross_entropy"),
        ("--max-tokens 120", "--max-tokens was 60, is now 120"),
    ):
        refusal = rf"checkpoint_last\.pt: that training run had other options: .*{message}.*--save-"
        with pytest.raises(ValueError, match=refusal):
            train(data, translator.parent, *words.split())
    refusal = r"checkpoint_last\.pt: Optimizer does not match; .* \(--reset-optimizer\)"
    with pytest.raises(ValueError, match=refusal):  # said that the model cannot be built
        train(data, translator.parent, optimizer="sgd")
    assert translator.read_bytes() == before
    assert train(data, tmp_path / "other", lr=0.5, finetune_from_model=translator)


@pytest.mark.parametrize(
    "split, source, changed",
    [
        ("train", "valid", "the training set"),
        ("valid", "test", "the validation set 'valid'"),
        ("train", None, "the training set"),  # only checksums tell these apart
        ("valid", None, "the validation set 'valid'"),
    ],
)
def test_other_data_is_refused_wherever_it_is(data, translator, tmp_path, split, source, changed):
    moved = shutil.copytree(data, tmp_path / "moved")
    used = shutil.copytree(translator.parent, tmp_path / "used")
    if source is None:
        write_sums(moved)
    train(moved, used, max_update=3)
    for path in moved.glob(f"{source}.*"):
        shutil.copy(path, path.with_name(path.name.replace(source, split)))
    if source is None:
        path = next(moved.glob(f"{split}.*.bin"))
        content = path.read_bytes()
        path.write_bytes(content[2:4] + content[:2] + content[4:])  # the first two words
        write_sums(moved)
    message = f"--data was .*moved then, is .*moved with other sentences in {changed}"
    with pytest.raises(ValueError, match=f"{message}. Choose another --save-dir"):
        train(moved, used, max_update=3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--max-epoch 9 --log-interval 1 --keep-last-epochs 1", None),
        ("--wandb-project mos(15) --aim-repo runs(2)/all", None),  # names, not code
        ("--max-tokens 30 --update-freq 2", None),  # as many tokens
        ("--lr 0.5 --allow-changed-options", "that training run had other options"),
        ("--seed 5 --reset-optimizer --reset-dataloader", "that training run had other options"),
        ("--valid-subset test --ignore-unused-valid-subsets",
         "--valid-subset was valid, is now test"),
        ("--best-checkpoint-metric ppl", "--best-checkpoint-metric was loss, is now ppl"),
    ],
)  # fmt: skip
def test_a_run_with_legitimate_changes_resumes(data, translator, tmp_path, words, said, caplog):
    used = shutil.copytree(translator.parent, tmp_path / "used")
    assert updates(train(data, used, *words.split(), max_update=3)) == 3
    assert ((said or "had other options") in caplog.text) is bool(said)
