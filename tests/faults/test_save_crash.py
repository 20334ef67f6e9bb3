"""A save that is killed, or whose disk is full or fails, at any point leaves a whole checkpoint.

    pytest --run-long -s tests/faults/test_save_crash.py

A process saves a checkpoint as fairseq does, under a name of its own and two further ones, again
and again. A library that is loaded before all others (`crash.c`) counts the calls of the C library
that change files below the folder, and gives each save a fault at the next call: SIGKILL before it
or within it, or an error, once or from then on. A training run that starts then must find the old
checkpoint or the new one, with its exact contents.
"""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from highrank_plugins.common.checkpoint_file import check_archive
from highrank_plugins.common.folders import locked
from highrank_plugins.hooks import training_loop

SOURCE = Path(__file__).with_name("crash.c")
COMPILER = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
KINDS = {
    "SIGKILL before": (0, 0),
    "SIGKILL within": (1, 0),
    "ENOSPC once": (2, errno.ENOSPC),
    "ENOSPC from then on": (3, errno.ENOSPC),
    "EIO once": (2, errno.EIO),
    "EIO from then on": (3, errno.EIO),
}
SAVED, FAILED = 0, 3


def state(updates: int, size: int) -> dict:
    """Return what a checkpoint holds after some updates: `size` float32 numbers and a few more.

    Only numpy computes: torch's threads would hang in a process that was forked.
    """
    numbers = numpy.arange(size, dtype=numpy.float32) + updates
    tensors = {"a": torch.from_numpy(numbers), "b": torch.from_numpy(numbers[:7].copy())}
    return {"model": tensors, "updates": updates}


def save(folder: Path, updates: int, size: int) -> None:
    """Write a checkpoint and its two other names, in a folder of a training run."""
    (folder / "training.lock").touch()
    own = str(folder / f"checkpoint_1_{updates}.pt")
    checkpoint_utils.torch_persistent_save(state(updates, size), own)
    for name in ("best", "last"):
        PathManager.copy(own, str(folder / f"checkpoint_{name}.pt"), overwrite=True)


def check_found(folder: Path, size: int, code: int) -> None:
    """Assert that a training run would find the old or the new checkpoint, and no other."""
    for path in folder.glob("checkpoint*.pt"):
        check_archive(path)
    cfg = Namespace(
        save_dir=str(folder), reset_dataloader=False, reset_optimizer=False, continue_once=None
    )
    found = torch.load(training_loop.choose(cfg), weights_only=True)
    for name, value in state(found["updates"], size)["model"].items():
        assert numpy.array_equal(found["model"][name].numpy(), value.numpy())
    assert found["updates"] in ((2,) if code == SAVED else (1, 2))
    if code == FAILED:
        assert not list(folder.glob("*.tmp"))
    with locked(str(folder)):
        assert not list(folder.glob("*.tmp"))


def in_child(action: Callable[[], None]) -> int:
    """Return SAVED, FAILED after an OSError, or minus the signal that ended the child."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            action()
            code = SAVED
        except OSError:
            code = FAILED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sweep(folder: Path, size: int) -> None:
    """Save with each fault at each call, and print how many calls of each name there are."""
    time.sleep = lambda seconds: None  # between attempts to save
    faults = ctypes.CDLL(None)
    faults.faults_name.restype = ctypes.c_char_p

    def overwrite(at: int, kind: int, error: int) -> None:
        faults.faults_arm(os.fsencode(inner), at, kind, error)
        save(inner, 2, size)

    inner = folder / "whole"
    inner.mkdir()
    save(inner, 1, size)
    overwrite(-1, 0, 0)
    names = [faults.faults_name(number).decode() for number in range(faults.faults_count())]
    faults.faults_arm(b"", -1, 0, 0)
    for kind, number in product(KINDS, range(len(names))):
        inner = folder / f"{kind}-{number}"
        inner.mkdir()
        save(inner, 1, size)
        code = in_child(lambda at=number, fault=KINDS[kind]: overwrite(at, *fault))  # type: ignore[misc]
        expected = [-signal.SIGKILL] if "SIGKILL" in kind else [SAVED, FAILED]
        assert code in expected, f"{kind} at call {number} ({names[number]}): exit code {code}"
        # what could not be removed is removed by the next training run
        left = names[number] == "unlink" or "from then on" in kind
        check_found(inner, size, -signal.SIGKILL if left else code)
        shutil.rmtree(inner)
    print(f"{len(KINDS) * len(names)} faults:", *Counter(names).items())


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD and /proc are Linux's")
@pytest.mark.parametrize("size", [100, pytest.param(3_000_000, marks=pytest.mark.long)])
def test_every_crash_leaves_an_undamaged_checkpoint(tmp_path, size):
    library = tmp_path / "crash.so"
    line = [str(COMPILER), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*line, str(SOURCE), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.test_save_crash", tmp_path, str(size)],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True, text=True, check=False, cwd=SOURCE.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"\n{4 * size} bytes, {done.stdout}")
    assert all(f"('{name}', " in done.stdout for name in ("write", "fsync", "rename", "link"))


if __name__ == "__main__":
    sweep(Path(sys.argv[1]), int(sys.argv[2]))
