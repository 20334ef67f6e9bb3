"""`highrank doctor --faults` finds what a disk lacks, prints each fault, and leaves nothing."""

from contextlib import contextmanager

import pytest
import typer

from highrank_plugins.cli import disk_faults
from highrank_plugins.cli.doctor import doctor
from highrank_plugins.common import files
from tests.cli.test_highrank import called


def test_this_file_system_supports_saves(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_faults, "_RENAMES", 20)
    found = list(disk_faults.try_faults(tmp_path))
    assert len(found) == 3 and all(finding.survived for _, finding in found), found
    assert not list(tmp_path.iterdir())


def test_a_lock_without_effect_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_faults, "locked", contextmanager(lambda folder: iter([True])))
    survived, details, advice = disk_faults.start_twice(tmp_path)
    assert not survived
    assert details == "a second process could lock the folder as well"
    assert "-o flock" in advice


def test_a_folder_without_locks_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_faults, "locked", contextmanager(lambda folder: iter([False])))
    assert disk_faults.start_twice(tmp_path)[:2] == (False, "no process could lock the folder")


def test_a_rename_that_is_a_copy_is_detected(tmp_path, monkeypatch):
    def copy(source, target):
        target.write_bytes(b"")
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(disk_faults.os, "replace", copy)
    survived, details, _ = disk_faults.replace_while_reading(tmp_path)
    assert not survived
    assert "times torn" in details


def test_flushes_that_fail_are_detected(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_faults, "FAULTS", {"flushes": disk_faults.flush_and_link})
    monkeypatch.setattr(files.os, "fsync", fail)
    ((_, finding),) = disk_faults.try_faults(tmp_path)
    assert not finding.survived
    assert "Input/output error" in finding.details


def test_missing_hard_links_are_reported(tmp_path, monkeypatch):
    def refuse(*names):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(disk_faults.os, "link", refuse)
    survived, details, advice = disk_faults.flush_and_link(tmp_path)
    assert survived
    assert details.endswith("hard links: no")
    assert "plan for three times the disk" in advice


def fail(folder):
    (folder / "left").write_text("behind")
    return disk_faults.Finding(False, "it is dark", "Buy a battery")


def raise_error(folder):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    "tried, code, words",
    [
        ([disk_faults.flush_and_link], 0, "survived  flush and link              a flush takes"),
        ([fail, disk_faults.flush_and_link], 1, f"FAILED    {'fail':<28}it is dark. Buy a batt"),
        ([raise_error], 1, f"FAILED    {'raise error':<28}[Errno 28] No space left on device. S"),
    ],
)
def test_each_fault_prints_a_line_and_sets_the_exit_code(
    tmp_path, monkeypatch, capsys, tried, code, words
):
    faults = {fault.__name__.replace("_", " "): fault for fault in tried}
    monkeypatch.setattr(disk_faults, "FAULTS", faults)
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with pytest.raises(typer.Exit) as ended:
        doctor(tmp_path, faults=True)
    assert ended.value.exit_code == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(words)
    assert len(lines) == len(tried)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name, with_faults, words",
    [
        ("none", True, "no such file or directory"),
        (".", False, "no effect without --faults"),
    ],
)
def test_wrong_folders_are_refused(tmp_path, monkeypatch, name, with_faults, words):
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    done = called("doctor", tmp_path / name, *["--faults"] * with_faults)
    assert done.returncode == 2 and words in done.stderr
