"""Kill saves at random moments, let them meet a full disk, and check the files that remain.

The saves are those of a training run: the same functions write, link and lock.
"""

import ctypes
import itertools
import os
import random
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy
import torch

from highrank_plugins.common.checkpoint_file import first_whole
from highrank_plugins.common.files import link_whole, write_whole
from highrank_plugins.common.folders import locked
from highrank_plugins.common.processes import end_with_parent

MOST_SECONDS = 20.0
_FORKS = get_context("fork")
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_STUCK_SECONDS = 60  # a disk that takes longer counts as stuck


def state(updates: int, size: int) -> dict[str, Any]:
    """Return what a checkpoint holds after some updates: `size` float32 numbers and a few more.

    Only numpy computes: torch's threads would hang in a process that was forked.
    """
    numbers = numpy.arange(size, dtype=numpy.float32) + updates
    tensors = {"a": torch.from_numpy(numbers), "b": torch.from_numpy(numbers[:7].copy())}
    return {"model": tensors, "updates": updates}


def updates_of(path: str | Path, size: int) -> int:
    """Return after how many updates a checkpoint was saved.

    Raises:
        ValueError: It holds something other than `state` returns.
    """
    found = torch.load(path, weights_only=True)
    for name, value in state(found["updates"], size)["model"].items():
        if not numpy.array_equal(found["model"][name].numpy(), value.numpy()):
            raise ValueError(f"{path} differs from what was saved")
    return int(found["updates"])


def save(folder: Path, updates: int, size: int) -> None:
    """Write a checkpoint under its own name, and give it those of the last and of the best one."""
    own, values = folder / f"checkpoint_1_{updates}.pt", state(updates, size)
    write_whole(own, lambda file: torch.save(values, cast(BinaryIO, file)))
    for name in ("best", "last"):
        link_whole(own, folder / f"checkpoint_{name}.pt")


def newest(folder: Path, size: int) -> int:
    """Return the updates of the checkpoint that a training run would resume from.

    Raises:
        ValueError: No checkpoint is complete, or one differs from what was saved.
    """
    last = folder / "checkpoint_last.pt"
    found = [path for path in folder.glob("checkpoint*.pt") if path != last]
    others = sorted(found, key=os.path.getmtime, reverse=True)
    path, damage = first_whole([last, *others] if last.exists() else others)
    if path is None:
        raise ValueError(f"no undamaged checkpoint is left: {'; '.join(damage) or 'none at all'}")
    return updates_of(path, size)


def kill_saves(folder: Path, kills: int, size: int) -> int:
    """Kill a process that saves, again and again at random moments; return how often.

    Each time the newest save that had ended, or the one that was running, must be whole.
    """
    draw, began, tried = random.Random(time.time_ns()), time.monotonic(), 0
    done = _FORKS.RawValue("q", 1)  # has no lock that a killed process could hold
    save(folder, 1, size)
    once = time.monotonic() - began
    while tried < kills and time.monotonic() - began < MOST_SECONDS:
        process = _FORKS.Process(target=_save_on, args=(folder, size, done))
        process.start()
        time.sleep(draw.uniform(0, 6 * once + 0.05))
        process.kill()
        process.join()
        tried += 1
        found = newest(folder, size)
        assert found >= done.value, (
            f"update {found} is the newest, although the save of update {done.value} had ended"
        )
        done.value = found
    with locked(folder):
        assert not list(folder.glob("*.tmp"))
    return tried


def _save_on(folder: Path, size: int, done: ctypes.c_longlong) -> None:
    end_with_parent()
    with locked(folder):
        for updates in itertools.count(done.value + 1):
            save(folder, updates, size)
            done.value = updates
            (folder / f"checkpoint_1_{updates - 2}.pt").unlink(missing_ok=True)


def fill_disk(folder: Path, size: int) -> dict[str, str]:
    """Save under a limit on file sizes and on a small full disk; return what went wrong in each."""
    wrong = {}
    for limit in (limit_files, small_disk):
        (inner := folder / limit.__name__).mkdir()
        wrong[limit.__name__] = in_child(_fill, limit, inner, size)
    return wrong


def in_child(function: Callable[..., str], *arguments: object) -> str:
    """Call a function in a separate process, and return its result."""
    ours, theirs = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_answer, args=(theirs, function, *arguments))
    process.start()
    theirs.close()
    if not ours.poll(_STUCK_SECONDS):
        process.kill()
        process.join()
        return f"the save did not end within {_STUCK_SECONDS} s"
    with suppress(EOFError):
        return str(ours.recv())
    process.join()  # the pipe closes a moment before the process ends
    return f"the save ended with exit code {process.exitcode}"


def _answer(pipe: Connection, function: Callable[..., str], *arguments: object) -> None:
    end_with_parent()
    pipe.send(function(*arguments))


def _fill(limit: Callable[[Path, int], None], folder: Path, size: int) -> str:
    """Save once, then save too much; return what went wrong, or an empty text."""
    try:
        limit(folder, 4 * size)
    except OSError as error:
        return f"cannot be tried here ({error.strerror})"
    save(folder, 1, size // 2)
    try:
        save(folder, 2, 2 * size)
    except OSError:
        left = [path.name for path in folder.glob("*.tmp")]
        try:
            found = newest(folder, size // 2)
        except ValueError as error:
            return str(error)
        return f"{left} are left" if left or found != 1 else ""
    return "an incomplete save was reported as complete"


def limit_files(_folder: Path, most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def small_disk(folder: Path, most: int) -> None:
    """Mount a disk of `most` bytes on a folder, which only this process sees.

    Raises:
        OSError: The system does not let its users do so.
    """
    system, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    _check(system.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
    for name, text in {
        "setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1",
    }.items():  # fmt: skip
        Path("/proc/self", name).write_text(text, encoding="ascii")
    options = f"size={most}".encode()
    _check(system.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options))


def _check(code: int) -> None:
    if code != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
