"""`highrank doctor --faults` finds what a disk lacks, prints each fault, and leaves nothing."""

import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from highrank_plugins.cli import doctor
from highrank_plugins.common import files
from tests.cli import highrank, refused


@pytest.fixture(autouse=True)
def own_signals(monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *arguments: None)


def test_this_file_system_supports_saves(tmp_path):
    done = highrank("doctor", tmp_path, "--faults")
    lines = done.stdout.splitlines()
    assert done.exit_code == 0 and len(lines) == 3, done.output
    assert all(line.startswith("survived") for line in lines)
    assert not list(tmp_path.iterdir())
    refused("no such file or directory", "doctor", tmp_path / "none", "--faults")


def copied(source, target):
    content = Path(source).read_bytes()
    Path(target).write_bytes(b"")
    time.sleep(0.001)
    Path(target).write_bytes(content)


def failing(*_):
    raise PermissionError(1, "Operation not permitted")


def locking(is_locked):
    return contextmanager(lambda folder: iter([is_locked]))


@pytest.mark.parametrize(
    ("place", "name", "broken", "said"),
    [
        (doctor, "locked", locking(True), "a second process could lock the folder as well"),
        (doctor, "locked", locking(True), "mount with locks (Lustre: -o flock; NFS: without"),
        (doctor, "locked", locking(False), "no process could lock the folder"),
        (doctor.os, "replace", copied, "times torn"),
        (files.os, "fsync", failing, "Operation not permitted"),
        (doctor.os, "link", failing, "hard links: no. Each save copies the checkpoint: plan"),
    ],
)
def test_what_a_disk_lacks_is_found(place, name, broken, said, tmp_path, monkeypatch):
    monkeypatch.setattr(place, name, broken)
    done = highrank("doctor", tmp_path, "--faults")
    (line,) = (line for line in done.stdout.splitlines() if said in line)
    survives = name == "link"  # a copy takes its place
    assert line.startswith("survived" if survives else "FAILED")
    assert done.exit_code == (0 if survives else 1)
    assert not list(tmp_path.iterdir())
