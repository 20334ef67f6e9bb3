"""A save that is killed, or whose disk is full or fails, at any point leaves a whole checkpoint.

A child process saves a checkpoint as fairseq does, under a name of its own and two further ones. At
each call that changes the disk it is killed (before the call, or within it), or gets an error; or a
limit on file sizes or a small disk is real. A training run that starts then must find the old
checkpoint or the new one, with its exact contents.
"""

import ctypes
import errno
import os
import resource
import signal
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import numpy
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.common import files
from highrank_plugins.common.checkpoint_file import check_archive
from highrank_plugins.common.folders import locked
from highrank_plugins.hooks import training_loop

FAULTS = ("kill before", "kill within", errno.ENOSPC, errno.EIO)
CALLS = ("fsync", "replace", "link", "unlink")
SAVED, FAILED, UNTRIED = 0, 3, 4
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000


def state(updates: int, size: int) -> dict:
    """Return what a checkpoint holds after some updates: `size` float32 numbers and a few more.

    Only numpy computes: torch's threads would hang in a process that was forked.
    """
    numbers = numpy.arange(size, dtype=numpy.float32) + updates
    tensors = {"a": torch.from_numpy(numbers), "b": torch.from_numpy(numbers[:7].copy())}
    return {"model": tensors, "updates": updates}


def updates_of(path: str, size: int) -> int:
    """Return after how many updates a checkpoint was saved, if it has the contents of `state`."""
    found = torch.load(path, weights_only=True)
    for name, value in state(found["updates"], size)["model"].items():
        assert numpy.array_equal(found["model"][name].numpy(), value.numpy()), path
    return found["updates"]


class Faults:
    """Count calls that change the disk; make the call of one number fail."""

    def __init__(self, number: int = -1, fault: object = None) -> None:
        self.number, self.fault, self.names = number, fault, []

    def around(self, name, call, within=None):
        self.names.append(name)
        if len(self.names) - 1 != self.number:
            return call()
        if isinstance(self.fault, int):
            raise OSError(self.fault, os.strerror(self.fault))
        if self.fault == "kill within":
            with suppress(OSError):
                (within or call)()
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self, monkeypatch) -> None:
        for name in CALLS:
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, n=name, f=real: self.around(n, lambda: f(*a)))
        monkeypatch.setattr(files, "open", self.open, raising=False)
        monkeypatch.setattr("time.sleep", lambda seconds: None)

    def open(self, path, mode, *more, **options):
        return _Written(path, self) if mode == "wb" else open(path, mode, *more, **options)


class _Written:
    """Count the writes of a file."""

    def __init__(self, path: str, faults: Faults) -> None:
        self.faults = faults
        self.file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb")
        self.flush, self.fileno = self.file.flush, self.file.fileno

    def write(self, data) -> int:
        return self.faults.around("write", lambda: self.file.write(data), lambda: self.half(data))

    def half(self, data) -> None:
        self.file.write(bytes(data)[: len(data) // 2])
        self.file.flush()

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.file.close()


def save(folder, updates: int, size: int) -> None:
    """Write a checkpoint and its two other names."""
    own = str(folder / f"checkpoint_1_{updates}.pt")
    checkpoint_utils.torch_persistent_save(state(updates, size), own)
    for name in ("best", "last"):
        PathManager.copy(own, str(folder / f"checkpoint_{name}.pt"), overwrite=True)


def save_in_child(folder, size: int, faults: Faults) -> int:
    child = os.fork()
    if child == 0:
        code = 9
        try:
            faults.install(pytest.MonkeyPatch())
            save(folder, 2, size)
            code = SAVED
        except OSError:
            code = FAILED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def names_of_calls(folder, size: int) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        faults = Faults()
        faults.install(patch)
        save(folder, 2, size)
    return faults.names


def check_found(folder, size: int, code: int) -> None:
    """Assert that a training run would find the old or the new checkpoint, and no other."""
    for path in folder.glob("checkpoint*.pt"):
        check_archive(path)
    cfg = Namespace(
        save_dir=str(folder), reset_dataloader=False, reset_optimizer=False, continue_once=None
    )
    found = updates_of(training_loop.choose(cfg, ""), size)
    assert found in ((2,) if code == SAVED else (1, 2))
    if code == FAILED:
        assert not list(folder.glob("*.tmp"))
    with locked(str(folder)):
        assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_crash_leaves_an_undamaged_checkpoint(tmp_path, fault, every):
    size = 100
    (tmp_path / "count").mkdir()
    names = names_of_calls(tmp_path / "count", size)
    assert {"write", "fsync", "replace", "link"} <= set(names)
    tried = 0
    for number, name in enumerate(names):
        if name == "write" and number % every:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "training.lock").touch()  # as in each folder of a training run
        save(folder, 1, size)
        code = save_in_child(folder, size, Faults(number, fault))
        assert code in ([-signal.SIGKILL] if isinstance(fault, str) else [SAVED, FAILED])
        check_found(folder, size, code)
        for path in folder.iterdir():
            path.unlink()
        tried += 1
    print(f"{fault}: {tried} of {len(names)} calls of one save")


def limit_files(_folder: Path, most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def small_disk(folder: Path, most: int) -> None:
    """Mount a disk of `most` bytes on a folder, which only this process sees."""
    system, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if system.unshare(_CLONE_NEWUSER | _CLONE_NEWNS):
        os._exit(UNTRIED)
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        Path("/proc/self", name).write_text(text)
    options = f"size={most}".encode()
    if system.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options):
        os._exit(UNTRIED)


@pytest.mark.parametrize("limit", [limit_files, small_disk])
def test_a_disk_that_is_full_leaves_the_checkpoint_before(tmp_path, limit):
    child = os.fork()
    if child == 0:
        code = 9
        try:
            limit(tmp_path, 400_000)
            (tmp_path / "training.lock").touch()
            save(tmp_path, 1, 50_000)
            try:
                save(tmp_path, 2, 200_000)
            except OSError:
                check_found(tmp_path, 50_000, FAILED)
                code = FAILED
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == UNTRIED:
        pytest.skip("the system lets its users mount no disk")
    assert code == FAILED
