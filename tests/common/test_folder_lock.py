"""Test the folders of data commands; tests/hooks/test_save_dir_lock.py has training runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from highrank_plugins.common.folder_lock import whole_folder
from highrank_plugins.common.user_error import UserError


def test_the_folder_of_the_input_is_refused_as_output(tmp_path):
    (tmp_path / "train.en").write_text("a\n")
    (tmp_path / "link").symlink_to(tmp_path)
    for output in (tmp_path / "link", tmp_path / "x" / ".."):
        message = "holds the input, which the output would overwrite"
        with pytest.raises(ValueError, match=message), whole_folder(output, tmp_path):
            raise AssertionError
    assert (tmp_path / "train.en").read_text() == "a\n"


HOLD = """
import sys
from pathlib import Path
from highrank_plugins.common.folder_lock import whole_folder
with whole_folder(Path(sys.argv[1])) as new:
    (new / "train.en").touch()
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Start another command that writes into a folder."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_command_is_refused_and_the_first_named(tmp_path, other):
    message = rf"folder {tmp_path}/out is in use by another data command \(process {other.pid} on"
    with pytest.raises(UserError, match=message), whole_folder(tmp_path / "out"):
        raise AssertionError
    other.communicate("")
    assert other.returncode == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["train.en"]


def test_a_killed_command_leaves_no_lock(tmp_path, other):
    other.kill()
    other.wait()
    with whole_folder(tmp_path / "out"):
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_command_leaves_what_was_there(tmp_path):
    (tmp_path / "valid.en").touch()
    for folder in (tmp_path, tmp_path / "new" / "out"):
        with pytest.raises(KeyError), whole_folder(folder) as new:
            (new / "train.en").touch()
            raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["valid.en"]


def test_a_full_disk_is_named_with_its_folder(tmp_path):
    message = r"disk is full: [\d,.]+ [GMk]B are free\. Free some .*: '.*out'"
    full = Path("/dev/full")
    with pytest.raises(OSError, match=message), whole_folder(tmp_path / "out"):
        full.write_bytes(b"a")
    assert list(tmp_path.iterdir()) == []
