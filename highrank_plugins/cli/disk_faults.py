"""Try what saves need from a disk: locks, atomic renames, flushes and links."""

import errno
import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from highrank_plugins.common.files import flush, link_whole
from highrank_plugins.common.folders import locked
from highrank_plugins.common.user_error import UserError

_RENAMES, _BYTES = 300, 100_000
_ELSEWHERE = "Save to another file system: checkpoints may be lost on this one"


class Finding(NamedTuple):
    """Say whether a training run survives a fault on a disk, and what to do."""

    survived: bool
    details: str
    advice: str = ""


def try_faults(folder: Path) -> tuple[list[str], bool]:
    """Return a line for each fault on the disk of a folder, and whether runs survive them all."""
    # lets a scheduler's signal remove processes and files
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    lines, survived = [], True
    for name, fault in FAULTS.items():
        with TemporaryDirectory(prefix=".highrank-faults-", dir=folder.resolve()) as inner:
            try:
                found = fault(Path(inner))
            except OSError as error:
                found = Finding(False, str(error), _ELSEWHERE)
        verdict = "survived" if found.survived else "FAILED"
        lines.append(f"{verdict:<10}{name:<28}{'. '.join(filter(None, found[1:]))}")
        survived = survived and found.survived
    return lines, survived


def start_twice(folder: Path) -> Finding:
    """Lock a folder as a training run does, try again, and again after the holder is killed."""
    with locked(folder) as is_locked:
        two_can = _another_can_lock(folder)
    advice = "This does not test two machines: start a training run on each; one must be refused"
    found = Finding(True, "the second is refused; a killed one leaves no lock", advice)
    advice = "Start one training run at a time in a --save-dir here, or mount with locks"
    failed = Finding(False, "", f"{advice} (Lustre: -o flock; NFS: without nolock)")
    if not is_locked:
        return failed._replace(details="no process could lock the folder")
    if two_can:
        return failed._replace(details="a second process could lock the folder as well")
    if not (_another_can_lock(folder) and _another_can_lock(folder)):
        return failed._replace(details="the lock of a killed process remains")
    return found


def _another_can_lock(folder: Path) -> bool:
    """Whether another process can lock a folder; it is killed while it holds the lock."""
    process = get_context("fork").Process(target=_lock_and_die, args=(folder,))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _lock_and_die(folder: Path) -> None:
    with suppress(UserError), locked(folder) as is_locked:
        if is_locked:
            os.kill(os.getpid(), signal.SIGKILL)


def replace_while_reading(folder: Path) -> Finding:
    """Rename files onto one name while it is read: it must always be a whole one."""
    target, part = folder / "name", folder / "name.tmp"
    target.write_bytes(bytes(_BYTES))

    def rename() -> None:
        for number in range(_RENAMES):
            part.write_bytes(bytes([number % 256]) * _BYTES)
            os.replace(part, target)

    seen = Counter[str]()
    with ThreadPoolExecutor(1) as pool:
        renames = pool.submit(rename)
        while not renames.done():
            try:
                content = target.read_bytes()
            except OSError as error:
                # network disks report this error for a file that was replaced while open
                seen["missing"] += error.errno != errno.ESTALE
                continue
            is_whole = len(content) == _BYTES and content.count(content[:1]) == _BYTES
            seen["whole" if is_whole else "torn"] += 1
    renames.result()
    if seen["missing"] or seen["torn"]:
        found = f"{seen['missing']} times missing, {seen['torn']} times torn"
        return Finding(False, f"{found} in {seen.total()} reads", _ELSEWHERE)
    return Finding(True, f"{_RENAMES} renames, {seen['whole']} reads: always a whole file")


def flush_and_link(folder: Path) -> Finding:
    """Flush a file and the names in its folder, and give it a second name, as saves do."""
    first, second = folder / "first", folder / "second"
    began = time.monotonic()
    first.write_bytes(bytes(_BYTES))
    flush(first)
    flush(folder)
    flushed = f"a flush takes {1000 * (time.monotonic() - began):.0f} ms"
    link_whole(first, second)
    first.unlink()
    if second.read_bytes() != bytes(_BYTES):
        return Finding(False, "the file under its second name differs", _ELSEWHERE)
    try:
        os.link(second, folder / "third")
    except OSError:
        advice = "Each save copies the checkpoint: plan for three times the disk space"
        return Finding(True, f"{flushed}; hard links: no", advice)
    return Finding(True, f"{flushed}; hard links: yes")


FAULTS = {
    "two runs in one folder": start_twice,
    "rename over a file in use": replace_while_reading,
    "flushes and links": flush_and_link,
}
