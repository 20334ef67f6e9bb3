"""Faults of saves are survived by our writer, and found in a worse one."""

import os
from pathlib import Path

import pytest

from tests.faults import saves

SIZE = 10_000


def overwrite(path, write, expected_bytes=0):
    """Write in place, as fairseq does."""
    with Path(path).open("wb") as file:
        write(file)


def copy(source, target):
    Path(target).write_bytes(Path(source).read_bytes())


def test_kills_are_survived(tmp_path):
    assert saves.kill_saves(tmp_path, kills=4, size=SIZE) == 4
    assert {path.suffix for path in tmp_path.iterdir()} == {".pt", ".lock"}


def test_a_save_that_loses_what_it_confirmed_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(saves, "newest", lambda folder, size: 0)
    with pytest.raises(AssertionError, match="update 0 is the newest, although the save of"):
        saves.kill_saves(tmp_path, kills=4, size=SIZE)


def test_a_full_disk_is_survived(tmp_path):
    assert saves.fill_disk(tmp_path, SIZE) == {"limit_files": "", "small_disk": ""}


def test_a_writer_that_overwrites_in_place_fails_on_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(saves, "write_whole", overwrite)
    monkeypatch.setattr(saves, "link_whole", copy)
    monkeypatch.setattr(saves, "save", lambda *args: saves.write_whole(last(args[0]), write(*args)))
    for wrong in saves.fill_disk(tmp_path, SIZE).values():
        assert "no undamaged checkpoint is left" in wrong


def last(folder):
    return folder / "checkpoint_last.pt"


def write(folder, updates, size):
    return lambda file: file.write(os.urandom(4 * size)) and file.flush()


def test_wrong_contents_are_detected(tmp_path):
    saves.save(tmp_path, 3, SIZE)
    assert saves.newest(tmp_path, SIZE) == 3
    with pytest.raises(ValueError, match="differs from what was saved"):
        saves.newest(tmp_path, SIZE + 1)
    with pytest.raises(ValueError, match="no undamaged checkpoint is left: none at all"):
        saves.newest(tmp_path / "none", SIZE)


def test_the_exit_code_of_a_failed_save_is_reported(tmp_path):
    assert saves.in_child(os._exit, 3) == "the save ended with exit code 3"
