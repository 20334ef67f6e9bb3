"""Hold a lock file in another process: locks of one process do not exclude each other."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
input()
"""


@contextmanager
def held_elsewhere(lock: Path) -> Iterator[None]:
    """Hold a lock, made if need be, while the context lasts."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-c", _HOLD, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.communicate(b"\n")
