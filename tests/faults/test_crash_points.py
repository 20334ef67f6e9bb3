"""Repeat the sweep of `test_save_crash.py` below Python, at the calls of the C library.

    pytest --run-long -s tests/faults/test_crash_points.py

A library that is loaded before all others (`crash.c`) counts the calls that change files below the
folder of a save. A process saves a checkpoint again and again, each time with a fault at the next
call: SIGKILL before it or within it, or an error, once or from then on.
"""

import ctypes
import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.test_save_crash import FAILED, SAVED, check_found, save

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


def sweep(folder: Path, size: int) -> dict[str, dict[str, int]]:
    """Save with each fault at each call; return how many calls of each name were tried."""
    faults = ctypes.CDLL(None)
    faults.faults_name.restype = ctypes.c_char_p
    tried = {}
    for kind in KINDS:
        names: list[str] = []
        for number in range(10_000):
            inner = folder / f"{len(tried)}-{number}"
            inner.mkdir()
            (inner / "training.lock").touch()  # as in each folder of a training run
            save(inner, 1, size)
            code, name = save_with_fault(faults, inner, size, number, kind)
            if name is None:
                assert code == SAVED and number > 0
                break
            names.append(name)
            expected = [-signal.SIGKILL] if "SIGKILL" in kind else [SAVED, FAILED]
            assert code in expected, f"{kind} at call {number} ({name}): exit code {code}"
            # what could not be removed is removed by the next training run
            left = name == "unlink" or "from then on" in kind
            check_found(inner, size, -signal.SIGKILL if left else code)
            shutil.rmtree(inner)
        tried[kind] = dict(Counter(names))
    return tried


def save_with_fault(
    faults: ctypes.CDLL, folder: Path, size: int, number: int, kind: str
) -> tuple[int, str | None]:
    """Save update 2 in a child; return its exit code, and the call that failed, if one did."""
    note = folder.with_suffix(".call")
    child = os.fork()
    if child == 0:
        code = 9
        try:
            faults.faults_arm(os.fsencode(folder), number, *KINDS[kind])
            save(folder, 2, size)
            code = SAVED
        except OSError:
            code = FAILED
        finally:
            count = faults.faults_count()
            faults.faults_arm(b"", -1, 0, 0)
            note.write_text(faults.faults_name(number).decode() if count > number else "")
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == -signal.SIGKILL:
        return code, names_without_fault(faults, folder.parent, size)[number]
    return code, note.read_text() or None


@functools.cache
def names_without_fault(faults: ctypes.CDLL, parent: Path, size: int) -> list[str]:
    folder = parent / "whole"
    folder.mkdir()
    save(folder, 1, size)
    faults.faults_arm(os.fsencode(folder), -1, 0, 0)
    save(folder, 2, size)
    count = faults.faults_count()
    faults.faults_arm(b"", -1, 0, 0)
    return [faults.faults_name(number).decode() for number in range(count)]


@pytest.mark.long
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD and /proc are Linux's")
@pytest.mark.parametrize("size", [100, 3_000_000])
def test_a_crash_at_every_call_of_the_c_library_is_survived(tmp_path, size):
    library = tmp_path / "crash.so"
    line = [str(COMPILER), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*line, str(SOURCE), "-ldl"], check=True)
    (tmp_path / "saves").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.test_crash_points", tmp_path / "saves", str(size)],
        env=os.environ | {"LD_PRELOAD": str(library)},
        capture_output=True, text=True, check=False, cwd=SOURCE.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tried = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{4 * size} bytes, {sum(sum(t.values()) for t in tried.values())} faults: {tried}")
    assert set(tried) == set(KINDS)
    for names in tried.values():
        assert {"write", "fsync", "link"} <= set(names) and names.keys() & {"rename", "renameat"}


if __name__ == "__main__":
    import time

    time.sleep = lambda seconds: None  # between attempts to save
    print(json.dumps(sweep(Path(sys.argv[1]), int(sys.argv[2]))))
