"""Try what saves need from a disk: locks, atomic renames, flushes and links."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from tempfile import TemporaryDirectory

from highrank_plugins.common.files import flush, link_whole
from highrank_plugins.common.folders import locked
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.common.user_error import UserError

_FORKS = get_context("fork")
_RENAMES, _BYTES, _WAIT_SECONDS = 300, 100_000, 30


@dataclass(frozen=True)
class Finding:
    """Describe a fault that was tried, and what to do where it was not survived."""

    fault: str
    survived: bool
    details: str
    advice: str = ""

    def line(self) -> str:
        """Return the finding as one line."""
        verdict = "survived" if self.survived else "FAILED"
        advice = f". {self.advice}" if self.advice else ""
        return f"{verdict:<10}{self.fault:<28}{self.details}{advice}"


def try_faults(folder: Path) -> Iterator[Finding]:
    """Yield how each fault ended on the disk of a folder; leave nothing there."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name a folder on the disk to test")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} cannot be written to; name a folder that you can write to")
    for name, fault in FAULTS.items():
        with TemporaryDirectory(prefix=".highrank-faults-", dir=folder.resolve()) as inner:
            try:
                yield Finding(name, *fault(Path(inner)))
            except OSError as error:
                advice = "Save to another file system: checkpoints may be lost on this one"
                yield Finding(name, False, str(error), advice)


def start_twice(folder: Path) -> tuple[bool, str, str]:
    """Lock a folder as a training run does, try again, and again after the holder is killed."""
    held = _FORKS.Event()
    process = _FORKS.Process(target=_hold, args=(folder, held))
    process.start()
    try:
        problem = "no process could lock the folder" if not held.wait(_WAIT_SECONDS) else ""
        if not problem and _is_free(folder):
            problem = "a second process could lock the folder as well"
    finally:
        process.kill()
        process.join()
    if not problem and not _is_free(folder):
        problem = "the lock of a killed process remains"
    if problem:
        return False, problem, (
            "Start one training run at a time in a --save-dir here, or mount with locks "
            "(Lustre: -o flock; NFS: without nolock)"
        )  # fmt: skip
    advice = "This does not test two machines: start a training run on each; one must be refused"
    return True, "the second is refused; a killed one leaves no lock", advice


def _hold(folder: Path, held: Event) -> None:
    end_with_parent()
    with suppress(OSError), locked(folder) as is_locked:
        if is_locked:
            held.set()
            time.sleep(2 * _WAIT_SECONDS)


def _is_free(folder: Path) -> bool:
    try:
        with locked(folder):
            return True
    except UserError:
        return False


def replace_while_reading(folder: Path) -> tuple[bool, str, str]:
    """Rename files onto one name while another process reads it: it must always be a whole one."""
    target, part = folder / "name", folder / "name.tmp"
    seen, begun, stop = _FORKS.RawArray("q", 3), _FORKS.Event(), _FORKS.Event()
    target.write_bytes(bytes(_BYTES))
    reader = _FORKS.Process(target=_read, args=(target, seen, begun, stop))
    reader.start()
    try:
        begun.wait(_WAIT_SECONDS)
        for number in range(_RENAMES):
            part.write_bytes(bytes([number % 256]) * _BYTES)
            os.replace(part, target)
    finally:
        stop.set()
        reader.join(_WAIT_SECONDS)
        reader.kill()
    whole, missing, torn = seen
    if missing or torn or not whole:
        problem = f"{missing} times missing, {torn} times torn in {sum(seen)} reads"
        return False, problem, "Save to another file system"
    return True, f"{_RENAMES} renames, {whole} reads: always a whole file", ""


def _read(target: Path, seen: list[int], begun: Event, stop: Event) -> None:
    """Count the reads of a whole file, of none, and of a part."""
    end_with_parent()
    while not stop.is_set():
        try:
            content = target.read_bytes()
        except OSError as error:
            # network disks report this error for a file that was replaced while open
            seen[1] += error.errno != errno.ESTALE
            continue
        is_whole = len(content) == _BYTES and content.count(content[:1]) == _BYTES
        seen[0 if is_whole else 2] += 1
        begun.set()


def flush_and_link(folder: Path) -> tuple[bool, str, str]:
    """Flush a file and the names in its folder, and give it a second name, as saves do."""
    first, second = folder / "first", folder / "second"
    began = time.monotonic()
    with first.open("wb") as file:
        file.write(bytes(_BYTES))
        file.flush()
        os.fsync(file.fileno())
    flush(folder)
    flushed = f"a flush takes {1000 * (time.monotonic() - began):.0f} ms"
    link_whole(first, second)
    first.unlink()
    if second.read_bytes() != bytes(_BYTES):
        return False, "the file under its second name differs", "Save to another file system"
    try:
        os.link(second, folder / "third")
    except OSError:
        advice = "Each save copies the checkpoint: plan for three times the disk space"
        return True, f"{flushed}; hard links: no", advice
    return True, f"{flushed}; hard links: yes", ""


FAULTS = {
    "two runs in one folder": start_twice,
    "rename over a file in use": replace_while_reading,
    "flushes and links": flush_and_link,
}
