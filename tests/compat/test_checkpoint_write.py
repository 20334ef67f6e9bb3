"""compat/checkpoint_write.py: a full disk is played by the limit on the size of files."""

import resource
from contextlib import contextmanager

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.compat import checkpoint_write

OLD, NEW = {"x": torch.zeros(10)}, {"x": torch.ones(50_000)}


@contextmanager
def largest_file(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def files(tmp_path):
    """Write an old checkpoint and a new one of 200 kB next to it."""
    old, new = str(tmp_path / "checkpoint_best.pt"), str(tmp_path / "checkpoint1.pt")
    torch.save(OLD, old)
    torch.save(NEW, new)
    return old, new


def size_in(path) -> int:
    return len(torch.load(path)["x"])


def test_copy_and_save_replace(files):
    old, new = files
    assert PathManager.copy(new, old, overwrite=True)
    assert size_in(old) == 50_000
    checkpoint_utils.torch_persistent_save(OLD, new)
    assert size_in(new) == 10


def test_interrupted_copy_leaves_the_old_file(files):
    old, new = files
    with largest_file(100_000), pytest.raises(OSError, match="too large"):
        PathManager.copy(new, old, overwrite=True)
    assert size_in(old) == 10


def test_stock_copy_destroys_it(files, stock):
    old, new = files
    stock(PathManager, "copy")
    with largest_file(100_000), pytest.raises(OSError, match="too large"):
        PathManager.copy(new, old, overwrite=True)
    with pytest.raises(RuntimeError):
        size_in(old)


def test_full_disk_leaves_the_old_file(files):
    old, _ = files
    with largest_file(100_000), pytest.raises((OSError, RuntimeError)):
        checkpoint_utils.torch_persistent_save(NEW, old)
    assert size_in(old) == 10


def save_with_one_failure(monkeypatch, path) -> None:
    save, calls = torch.save, []

    def fail_once(obj, file):
        calls.append(obj)
        if len(calls) == 1:
            file.write(b"half a checkpoint")
            raise OSError("the network disk is away")
        save(obj, file)

    monkeypatch.setattr(torch, "save", fail_once)
    checkpoint_utils.torch_persistent_save(NEW, str(path))
    assert len(calls) == 2


def test_second_attempt_writes_a_whole_file(monkeypatch, files, tmp_path):
    save_with_one_failure(monkeypatch, files[0])
    assert size_in(files[0]) == 50_000
    assert not list(tmp_path.glob("*.tmp"))


def test_stock_second_attempt_appends(monkeypatch, files, stock):
    stock(checkpoint_utils, "torch_persistent_save")
    save_with_one_failure(monkeypatch, files[0])
    with open(files[0], "rb") as file:
        assert file.read(4) == b"half"


def test_data_and_name_are_flushed_in_order(monkeypatch, tmp_path):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(checkpoint_write.os, name)
        monkeypatch.setattr(
            checkpoint_write.os, name, lambda *a, n=name, f=real: (calls.append(n), f(*a))[1]
        )
    checkpoint_utils.torch_persistent_save(OLD, str(tmp_path / "checkpoint_last.pt"))
    assert calls == ["fsync", "replace", "fsync"]
