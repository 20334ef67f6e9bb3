"""Try what saves need from a file system: locks, atomic renames, links and flushes."""

import errno
import os
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from highrank_plugins.common.files import flush, link_whole
from highrank_plugins.common.folder_lock import locked
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.common.user_error import UserError
from highrank_plugins.reliability.finding import Finding

RENAMES, BYTES = 300, 100_000
_FORKS = get_context("fork")
_WAIT_SECONDS = 30
_WHOLE, _MISSING, _TORN = 0, 1, 2


def start_twice(folder: Path) -> Finding:
    """Lock a folder as a training run does, try again, and again after the holder is killed."""
    fault, held = "two runs in one folder", _FORKS.Event()
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
        return Finding(
            fault, False, problem,
            "Start one training run at a time in a --save-dir here, or mount with locks "
            "(Lustre: -o flock; NFS: without nolock)",
        )  # fmt: skip
    return Finding(
        fault, True, "the second is refused; a killed one leaves no lock",
        "This does not test two machines: start a training run on each; one must be refused",
    )  # fmt: skip


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


def replace_while_reading(folder: Path, renames: int = RENAMES) -> Finding:
    """Rename files onto one name while another process reads it: it must always be a whole one."""
    fault, target = "rename over a file in use", folder / "name"
    seen, begun, stop = _FORKS.RawArray("q", 3), _FORKS.Event(), _FORKS.Event()
    target.write_bytes(bytes(BYTES))
    reader = _FORKS.Process(target=_read, args=(target, seen, begun, stop))
    reader.start()
    try:
        begun.wait(_WAIT_SECONDS)
        for number in range(renames):
            part = folder / "name.tmp"
            part.write_bytes(bytes([number % 256]) * BYTES)
            os.replace(part, target)
    finally:
        stop.set()
        reader.join(_WAIT_SECONDS)
        reader.kill()
    whole, missing, torn = seen
    if missing or torn or not whole:
        return Finding(
            fault, False, f"{missing} times missing, {torn} times torn in {sum(seen)} reads",
            "Save to another file system",
        )  # fmt: skip
    return Finding(fault, True, f"{renames} renames, {whole} reads: always a whole file")


def _read(target: Path, seen: list[int], begun: Event, stop: Event) -> None:
    end_with_parent()
    while not stop.is_set():
        try:
            content = target.read_bytes()
        except OSError as error:
            # network disks report this error for a file that was replaced while open
            if error.errno != errno.ESTALE:
                seen[_MISSING] += 1
            continue
        is_whole = len(content) == BYTES and content.count(content[:1]) == BYTES
        seen[_WHOLE if is_whole else _TORN] += 1
        begun.set()


def flush_and_link(folder: Path) -> Finding:
    """Flush a file and the names in its folder, and give it a second name, as saves do."""
    fault, first, second = "flushes and links", folder / "first", folder / "second"
    began = time.monotonic()
    try:
        with first.open("wb") as file:
            file.write(bytes(BYTES))
            file.flush()
            os.fsync(file.fileno())
        flush(folder)
        took = time.monotonic() - began
        link_whole(first, second)
        first.unlink()
    except OSError as error:
        advice = "Save to another file system: a power failure may lose checkpoints on this one"
        return Finding(fault, False, str(error), advice)
    if second.read_bytes() != bytes(BYTES):
        return Finding(
            fault, False, "the file under its second name differs", "Use another file system"
        )
    links = _has_links(folder)
    return Finding(
        fault, True, f"a flush takes {1000 * took:.0f} ms; hard links: {'yes' if links else 'no'}",
        "" if links else "Each save copies the checkpoint: plan for three times the disk space",
    )  # fmt: skip


def _has_links(folder: Path) -> bool:
    with suppress(OSError):
        os.link(folder / "second", folder / "third")
        return True
    return False
