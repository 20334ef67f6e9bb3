"""Test common/files.py."""

import os
import shutil
from pathlib import Path

import pytest

from highrank_plugins.common.files import new_folder, open_own, write_text
from highrank_plugins.common.user_error import UserError


@pytest.mark.parametrize("mode", ["w", "a", "a+", "wb", "ab"])
def test_our_file_is_opened_and_a_link_is_not_followed(tmp_path, mode):
    with open_own(tmp_path / "ours", mode) as file:
        file.write(b"text" if "b" in mode else "text")
    assert (tmp_path / "ours").read_text() == "text"
    (tmp_path / "link").symlink_to(tmp_path / "ours")
    with pytest.raises(UserError, match=r"link is a symbolic link, .* remove it; nothing was"):
        open_own(tmp_path / "link", mode)
    assert (tmp_path / "ours").read_text() == "text"


@pytest.mark.parametrize("mode", ["a", "a+"])
def test_a_pipe_is_refused_at_once(tmp_path, mode):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is a symbolic link, a pipe or a device"):
        open_own(tmp_path / "pipe", mode)


def test_a_folder_in_place_of_a_file_is_reported(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_own(tmp_path, "w")


def test_the_temporary_file_of_a_write_follows_no_link(tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "table.md.tmp").symlink_to(tmp_path / "victim")
    write_text(tmp_path / "table.md", "table")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "table.md").read_text() == "table"
    assert not (tmp_path / "table.md").is_symlink()


def test_a_new_folder_appears_when_it_is_complete(tmp_path):
    with new_folder(tmp_path / "new") as part:
        (part / "file").touch()
        assert [path.name for path in tmp_path.iterdir()] == ["new.part"]
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["new", "new/file"]


def test_leftovers_of_an_interrupted_call_are_discarded(tmp_path):
    with pytest.raises(KeyError), new_folder(tmp_path / "new"):
        shutil.copytree(tmp_path / "new.part", tmp_path / "killed.part")
        raise KeyError
    with new_folder(tmp_path / "killed"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["killed"]


def test_a_users_folder_is_not_discarded(tmp_path):
    (tmp_path / "new.part").mkdir()
    (tmp_path / "new.part" / "mine").touch()
    with pytest.raises(FileExistsError, match="not written by this"), new_folder(tmp_path / "new"):
        pass
    assert (tmp_path / "new.part" / "mine").exists()


def test_a_full_disk_is_named_with_its_folder(tmp_path):
    message = r"disk is full: [\d,.]+ [GMk]B are free\. Free some .*: '.*new'"
    full = Path("/dev/full")
    with pytest.raises(OSError, match=message), new_folder(tmp_path / "new" / "part"):
        full.write_bytes(b"a")
    assert list((tmp_path / "new").iterdir()) == []
