"""One training run in a --save-dir, whose files it does not touch before it trains."""

import os
import subprocess
import sys

import pytest

from highrank_plugins.common import folders
from highrank_plugins.common.folders import locked
from highrank_plugins.common.user_error import UserError
from tests.compat.conftest import run_training, translation_options

HOLD = """
import sys
from highrank_plugins.common import folders
from highrank_plugins.common.folders import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Start another training run that holds the directory."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        while process.stdout.readline() not in ("held\n", ""):
            pass
        yield process
        process.kill()


def test_the_second_run_is_refused_and_a_killed_one_leaves_no_lock(data, tmp_path, other):
    words = translation_options(**{"--max-update": 1})
    name = rf"process {other.pid} on .*choose another --save-dir"
    with pytest.raises(UserError, match=rf"in use by another training run \({name}"):
        run_training(data, tmp_path, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["training.lock"]
    other.kill()
    other.wait()
    run_training(data, tmp_path, *words)
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


LINKED = "is a symbolic link, a pipe or a device in place of one of our files: remove it"


def test_a_link_in_place_of_the_lock_is_refused_and_not_followed(data, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "training.lock").symlink_to(victim)
    with pytest.raises(UserError, match=f"exp/training.lock {LINKED}"):
        run_training(data, tmp_path / "exp", *translation_options(**{"--max-update": 1}))
    assert victim.read_text() == "precious"


def test_a_pipe_in_place_of_the_lock_is_refused(tmp_path):
    os.mkfifo(tmp_path / "training.lock")
    with pytest.raises(UserError, match=f"training.lock {LINKED}"), locked(tmp_path):
        pass


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
        run_training(data, tmp_path / "file" / "exp", *translation_options(**{"--max-update": 1}))
