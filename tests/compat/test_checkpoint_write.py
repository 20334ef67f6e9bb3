"""compat/checkpoint_write.py: a full disk is played by the limit on the size of files."""

import errno
import os
import resource
from contextlib import contextmanager

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

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


def test_a_copy_is_a_hard_link_in_place_of_a_symbolic_one(files, tmp_path):
    old, new = files
    last = tmp_path / "checkpoint_last.pt"
    last.symlink_to(old)
    PathManager.copy(new, str(last), overwrite=True)
    assert (size_in(last), size_in(old)) == (50_000, 10)
    last.unlink()
    for _ in range(2):
        assert PathManager.copy(new, old, overwrite=True)
        assert os.path.samefile(new, old)
    checkpoint_utils.torch_persistent_save(OLD, new)
    assert (size_in(old), size_in(new)) == (50_000, 10)
    assert len(list(tmp_path.iterdir())) == 2


def test_an_interrupted_copy_leaves_the_old_file(files, monkeypatch, tmp_path):
    def refuse(*args, **kwargs):  # as on a file system without hard links
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    old, new = files
    with largest_file(100_000), pytest.raises(OSError, match="limit on file sizes"):
        PathManager.copy(new, old, overwrite=True)
    assert size_in(old) == 10
    assert not list(tmp_path.glob("*.tmp"))
    PathManager.copy(new, old, overwrite=True)
    assert size_in(old) == 50_000 and not os.path.samefile(new, old)


# torch words a full disk in its own way at some sizes
@pytest.mark.parametrize("limit", [90_000, 94_096, 98_192, 1, 199_000])
def test_a_full_disk_leaves_the_old_file(files, limit):
    old, _ = files
    message = r"limit on file sizes.*B are free, 200\.0 kB are needed\. Free some space.*best\.pt"
    with largest_file(limit), pytest.raises(OSError, match=message):
        checkpoint_utils.torch_persistent_save(NEW, old)
    assert size_in(old) == 10


def test_a_disk_without_space_and_one_that_stores_other_bytes_are_noticed(files, monkeypatch):
    def damage(handle, flush=os.fsync):
        flush(handle)
        os.pwrite(handle, b"x", 1000)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="not hold the written data"):
        patch.setattr(os, "fsync", damage)
        checkpoint_utils.torch_persistent_save(NEW, files[0])
    assert size_in(files[0]) == 10
    free = os.statvfs_result((4096, 4096, 100, 1, 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: free)
    monkeypatch.setattr(torch, "save", None)
    with pytest.raises(OSError, match=r"the disk is full: 4\.1 kB are free, 200\.0 kB are needed"):
        checkpoint_utils.torch_persistent_save(NEW, files[0])


def test_other_errors_of_torch_are_left_alone(tmp_path):
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        checkpoint_utils.torch_persistent_save({"f": lambda: 0}, str(tmp_path / "checkpoint1.pt"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_second_attempt_writes_a_complete_file(monkeypatch, files, tmp_path, is_async):
    save, calls = torch.save, []

    def fail_once(obj, file):
        calls.append(obj)
        if len(calls) == 1:
            file.write(b"half a checkpoint")
            raise OSError("the network disk is away")
        save(obj, file)

    monkeypatch.setattr(torch, "save", fail_once)
    checkpoint_utils.torch_persistent_save(NEW, files[0], async_write=is_async)
    assert len(calls) == 2 and size_in(files[0]) == 50_000
    assert not list(tmp_path.glob("*.tmp"))


def test_data_and_name_are_flushed_in_order(monkeypatch, tmp_path):
    calls = []
    for name in ("fsync", "posix_fadvise", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, f=real: (calls.append(n), f(*a))[1])
    checkpoint_utils.torch_persistent_save(OLD, str(tmp_path / "checkpoint_last.pt"))
    assert calls == ["fsync", "posix_fadvise", "replace", "fsync"]
