"""Test common/folders.py."""

import shutil
from pathlib import Path

import pytest

from highrank_plugins.common import folders
from highrank_plugins.common.files import write_text
from highrank_plugins.common.folders import NEW, new_files, new_folder, refuse_mixture
from highrank_plugins.common.user_error import UserError


def test_a_new_folder_appears_when_it_is_complete(tmp_path):
    with new_folder(tmp_path / "new") as part:
        (part / "file").touch()
        assert [path.name for path in tmp_path.iterdir()] == ["new.part"]
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["new", "new/file"]


def test_all_is_flushed_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    flushed = {}
    monkeypatch.setattr(folders, "flush", lambda path: flushed.update({path: target.exists()}))
    target = tmp_path / "new"
    with new_folder(target) as part:
        write_text(part / "below" / "file", "text")
        (part / "link").symlink_to("missing")
    before = {path for path, is_there in flushed.items() if not is_there}
    assert {part, part / "below", part / "below" / "file"} <= before
    assert flushed[tmp_path] and part / "link" not in flushed


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


def test_new_files_replace_earlier_ones_and_keep_others(tmp_path):
    for text in ("earlier", "new"):
        with new_files(tmp_path) as folder:
            write_text(folder / "a", text)
            write_text(folder / "below" / "b", text)
            assert not (tmp_path / "a").exists() or (tmp_path / "a").read_text() == "earlier"
        (tmp_path / "mine").touch()
    found = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"a": "new", "b": "new", "mine": ""}
    refuse_mixture(tmp_path)


def test_a_folder_with_the_name_of_a_new_file_is_refused_before_any_is_replaced(tmp_path):
    (tmp_path / "a").touch()
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match="/b is a folder; a file"), new_files(tmp_path) as folder:
        (folder / "a").write_text("new")
        (folder / "b").touch()
    assert (tmp_path / "a").read_text() == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_files_behind_a_link_are_not_taken_for_new_ones(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").touch()
    (tmp_path / NEW).symlink_to("mine")
    with pytest.raises(UserError, match=f"{NEW} is a symbolic link"), new_files(tmp_path):
        pass
    assert (tmp_path / "mine" / "a").exists()


def test_a_mixture_below_a_folder_is_refused(tmp_path):
    (tmp_path / NEW / "shard02").mkdir(parents=True)
    refuse_mixture(tmp_path / "shard01")
    for folder in (tmp_path / "shard02", tmp_path):
        with pytest.raises(UserError, match="may hold files of two texts"):
            refuse_mixture(folder)
