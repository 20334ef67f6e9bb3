"""Test hooks/save_dir_lock.py."""

import subprocess
import sys

import pytest

import highrank_plugins.hooks.save_dir_lock  # noqa: F401  (importing it applies the repair)
from highrank_plugins.common.user_error import UserError
from tests.compat.conftest import run_training, translation_options

HOLD = """
import sys
from highrank_plugins.common.folder_lock import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Start another training that holds the directory."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        while process.stdout.readline() not in ("held\n", ""):
            pass
        yield process
        process.kill()


def test_the_second_training_is_refused_and_told_who_is_first(data, tmp_path, other):
    message = rf"in use by another training \(process {other.pid} on .*choose another --save-dir"
    with pytest.raises(UserError, match=message):
        run_training(data, tmp_path, *translation_options(**{"--max-update": 1}))
    assert [path.name for path in tmp_path.iterdir()] == ["training.lock"]


def test_a_killed_training_leaves_no_lock(data, tmp_path, other):
    other.kill()
    other.wait()
    run_training(data, tmp_path, *translation_options(**{"--max-update": 1}))
    assert (tmp_path / "checkpoint_last.pt").exists()


def test_a_folder_that_cannot_be_made_is_named(data, tmp_path):
    (tmp_path / "file").touch()
    message = r"--save-dir .*file/exp cannot be written \(Not a directory\): choose another"
    with pytest.raises(UserError, match=message):
        run_training(data, tmp_path / "file" / "exp", *translation_options(**{"--max-update": 1}))
