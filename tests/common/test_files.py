"""Test common/files.py."""

import os

import pytest

from highrank_plugins.common.files import open_own, read_json, write_text
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


def test_json_is_not_read_from_a_pipe_or_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        with pytest.raises(UserError, match=f"{name} is a pipe or a device; a file is needed"):
            read_json(tmp_path / name)


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
