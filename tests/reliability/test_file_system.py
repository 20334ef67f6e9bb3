"""What a file system lacks is found."""

from contextlib import contextmanager

from highrank_plugins.reliability import file_system


def test_this_file_system_supports_saves(tmp_path):
    for fault in (file_system.start_twice, file_system.flush_and_link):
        finding = fault(tmp_path)
        assert finding.survived, finding.line()
    finding = file_system.replace_while_reading(tmp_path, renames=20)
    assert finding.survived, finding.line()


def test_a_lock_without_effect_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(file_system, "locked", contextmanager(lambda folder: iter([True])))
    finding = file_system.start_twice(tmp_path)
    assert not finding.survived
    assert finding.details == "a second process could lock the folder as well"
    assert "-o flock" in finding.advice


def test_a_folder_without_locks_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(file_system, "locked", contextmanager(lambda folder: iter([False])))
    monkeypatch.setattr(file_system, "_WAIT_SECONDS", 0.2)
    assert file_system.start_twice(tmp_path).details == "no process could lock the folder"


def test_a_rename_that_is_a_copy_is_detected(tmp_path, monkeypatch):
    def copy(source, target):
        target.write_bytes(b"")
        target.write_bytes(source.read_bytes())

    monkeypatch.setattr(file_system.os, "replace", copy)
    finding = file_system.replace_while_reading(tmp_path)
    assert not finding.survived
    assert "times torn" in finding.details


def test_flushes_that_fail_are_detected(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_system.os, "fsync", fail)
    finding = file_system.flush_and_link(tmp_path)
    assert not finding.survived
    assert "Input/output error" in finding.details


def test_missing_hard_links_are_reported(tmp_path, monkeypatch):
    def refuse(*names):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(file_system.os, "link", refuse)
    finding = file_system.flush_and_link(tmp_path)
    assert finding.survived
    assert finding.details.endswith("hard links: no")
    assert "plan for three times the disk" in finding.advice
