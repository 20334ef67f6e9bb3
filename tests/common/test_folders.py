"""common/files.py and folders.py; tests/hooks/test_resuming.py has the lock of a training run."""

import os
import shutil
from pathlib import Path

import pytest

from highrank_plugins.common import folders
from highrank_plugins.common.files import open_own, read_json, write_text
from highrank_plugins.common.folders import new_folder
from highrank_plugins.common.user_error import UserError
from tests.held_lock import held_elsewhere


def test_no_link_is_followed_and_no_pipe_or_device_read(tmp_path):
    ours, link, pipe = (tmp_path / name for name in ("ours", "link", "pipe"))
    link.symlink_to(ours)
    os.mkfifo(pipe)
    (tmp_path / "device").symlink_to("/dev/zero")
    for mode in ("w", "a", "a+", "wb", "ab"):
        with open_own(ours, mode) as file:
            file.write(b"text" if "b" in mode else "text")
        before = ours.read_text()
        with pytest.raises(UserError, match=r"link is a symbolic link, .* remove it; nothing was"):
            open_own(link, mode)
        assert ours.read_text() == before
    assert before == "texttext"
    for mode in ("a", "a+"):
        with pytest.raises(UserError, match="pipe is a symbolic link, a pipe or a device"):
            open_own(pipe, mode)
    for name in ("pipe", "device"):
        with pytest.raises(UserError, match=f"{name} is a pipe or a device; a file is needed"):
            read_json(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        open_own(tmp_path, "w")
    table = tmp_path / "table.md"
    (tmp_path / "table.md.tmp").symlink_to(ours)
    write_text(table, "table")
    assert ours.read_text() == before and table.read_text() == "table" and not table.is_symlink()


def test_a_stream_is_written_as_it_is_and_a_pipe_that_nobody_reads_is_refused(tmp_path):
    os.mkfifo(pipe := tmp_path / "checkpoint_best.pt")
    with pytest.raises(UserError, match=r"checkpoint_best\.pt is a pipe that nobody reads: remove"):
        write_text(pipe, "text")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    write_text(Path("/dev/null"), "text")
    with (tmp_path / "log").open("a") as log:
        print("before", file=log, flush=True)
        write_text(Path(f"/dev/fd/{log.fileno()}"), "as of --output /dev/stdout >>log")
    assert (tmp_path / "log").read_text() == "before\nas of --output /dev/stdout >>log"


def test_a_new_folder_appears_when_all_is_written_and_flushed(tmp_path, monkeypatch):
    flushed, target = {}, tmp_path / "new"
    monkeypatch.setattr(folders, "flush", lambda path: flushed.update({path: target.exists()}))
    with new_folder(target) as part:
        write_text(part / "below" / "file", "text")
        (part / "link").symlink_to("missing")
        assert [path.name for path in tmp_path.iterdir()] == ["new.part"]
    assert {path.name for path in tmp_path.rglob("*")} == {"new", "below", "file", "link"}
    before = {path for path, is_there in flushed.items() if not is_there}
    assert {part, part / "below", part / "below" / "file"} <= before
    assert flushed[tmp_path] and part / "link" not in flushed


def test_only_leftovers_of_an_interrupted_call_are_discarded(tmp_path):
    with pytest.raises(KeyError), new_folder(tmp_path / "new"):
        shutil.copytree(tmp_path / "new.part", tmp_path / "killed.part")
        raise KeyError
    with new_folder(tmp_path / "killed"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["killed"]
    write_text(tmp_path / "new.part" / "mine", "")
    with pytest.raises(FileExistsError, match="not written by this"), new_folder(tmp_path / "new"):
        pass
    assert (tmp_path / "new.part" / "mine").exists()
    stage = tmp_path / "stage"
    write_text(stage / ".key", "key")
    (stage / ".highrank-new").symlink_to(".")
    with pytest.raises(FileExistsError, match="not written by this"), new_folder(stage):
        raise AssertionError
    (stage / ".highrank-new").unlink()
    with new_folder(stage) as new:  # hidden files are no text
        write_text(new / "below" / "b", "text")
        (new / "a").touch()
    found = {path.name for path in stage.rglob("*") if path.is_file()}
    assert found == {".key", "a", "b"}
    (tmp_path / "link").symlink_to(stage)
    for folder in (stage, tmp_path / "link", stage / "a"):
        with pytest.raises(UserError, match="exists already: name another"), new_folder(folder):
            raise AssertionError


@pytest.mark.parametrize("killed", [False, True])
def test_a_second_command_is_refused_until_the_first_has_ended(tmp_path, killed):
    out, block = tmp_path / "out", "(folder / 'train.en').touch()"
    with held_elsewhere(out, "new_folder(path)", block) as other:
        message = rf"folder {out} is in use by another command \(process {other.pid} on"
        with pytest.raises(UserError, match=message), new_folder(out):
            raise AssertionError
        if killed:
            other.kill()
    if killed:
        with new_folder(out):
            pass
    assert [path.name for path in out.iterdir()] == ([] if killed else ["train.en"])


def test_a_failed_command_leaves_nothing_and_a_full_disk_is_named(tmp_path):
    (tmp_path / ".key").touch()
    for folder in (tmp_path, tmp_path / "new" / "out"):
        with pytest.raises(KeyError), new_folder(folder) as new:
            (new / "train.en").touch()
            raise KeyError
    message = r"disk is full: [\d,.]+ [GMk]B are free\. Free some .*: '.*new'"
    with pytest.raises(OSError, match=message), new_folder(tmp_path / "new" / "part"):
        Path("/dev/full").write_bytes(b"a")
    assert [path.name for path in tmp_path.iterdir()] == [".key"]
