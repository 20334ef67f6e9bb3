"""One training run in a --save-dir, whose files it does not touch before it trains."""

import os

import pytest

from highrank_plugins.common import folders
from highrank_plugins.common.folders import locked
from highrank_plugins.common.user_error import UserError
from tests.compat.conftest import run_training, translation_options
from tests.held_lock import held_elsewhere

WORDS = translation_options(**{"--max-update": 1})


def test_the_second_run_is_refused_and_a_killed_one_leaves_no_lock(data, tmp_path):
    with held_elsewhere(tmp_path, "locked(path)") as other:
        name = rf"process {other.pid} on .*choose another --save-dir"
        with pytest.raises(UserError, match=rf"in use by another training run \({name}"):
            run_training(data, tmp_path, *WORDS)
        assert [path.name for path in tmp_path.iterdir()] == ["training.lock"]
        other.kill()
        other.wait()
    run_training(data, tmp_path, *WORDS)
    assert (tmp_path / "checkpoint_last.pt").exists()


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


def test_a_link_or_a_pipe_in_place_of_the_lock_is_refused_and_not_followed(data, tmp_path):
    lock, victim = tmp_path / "exp" / "training.lock", tmp_path / "victim"
    victim.write_text("precious")
    lock.parent.mkdir()
    for put in lambda: lock.symlink_to(victim), lambda: os.mkfifo(lock):
        put()
        linked = "is a symbolic link, a pipe or a device in place of one of our files: remove it"
        with pytest.raises(UserError, match=f"exp/training.lock {linked}"):
            run_training(data, lock.parent, *WORDS)
        lock.unlink()
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["new/exp", "."])
def test_a_refused_run_leaves_a_folder_as_it_was(data, tmp_path, name):
    (tmp_path / "notes").touch()
    words = translation_options(**{"--arch": "transformer_mos", "--head-components": 0})
    with pytest.raises(UserError, match="--head-components must be at least 1"):
        run_training(data, tmp_path / name, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


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


def test_a_folder_that_cannot_be_made_is_named(data, tmp_path):
    (tmp_path / "file").touch()
    message = r"--save-dir .*file/exp cannot be written \(Not a directory\): choose another"
    with pytest.raises(UserError, match=message):
        run_training(data, tmp_path / "file" / "exp", *WORDS)
