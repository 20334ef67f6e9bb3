"""A save that is killed, or whose disk is full or fails, at any point leaves a whole checkpoint.

A child process saves a checkpoint as fairseq does, under a name of its own and two further ones. At
each call that changes the disk it is killed (before the call, or within it), or gets an error. A
training run that starts then must find the old checkpoint or the new one, with its exact contents.
"""

import errno
import os
import signal
from argparse import Namespace
from contextlib import suppress

import pytest
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.common import files
from highrank_plugins.common.checkpoint_file import check_archive
from highrank_plugins.common.folders import locked
from highrank_plugins.hooks import training_loop
from tests.faults.saves import state, updates_of

FAULTS = ("kill before", "kill within", errno.ENOSPC, errno.EIO)
CALLS = ("fsync", "replace", "link", "unlink")
SAVED, FAILED = 0, 3


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
    """Save update 2; return the exit code, negative if it was killed."""
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
    """Return what a save calls, by counting in this process."""
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


@pytest.mark.parametrize(
    "size, every", [(100, 12), pytest.param(100, 1, marks=pytest.mark.long),
                    pytest.param(1_000_000, 1, marks=pytest.mark.long)]
)  # fmt: skip
@pytest.mark.parametrize("fault", FAULTS)
def test_every_crash_leaves_an_undamaged_checkpoint(tmp_path, fault, size, every):
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
