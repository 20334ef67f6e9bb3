"""Hold a lock in another process: locks of one process do not exclude each other."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sys
from pathlib import Path
from highrank_plugins.common.folders import held, locked, log_folder, new_folder
path = Path(sys.argv[1])
with {context} as folder:
    {block}
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_elsewhere(
    path: Path, context: str = "held(path, '', '')", block: str = "pass"
) -> Iterator[subprocess.Popen[str]]:
    """Hold a lock of common/folders.py, made if need be, while the context lasts."""
    words = [sys.executable, "-c", _HOLD.format(context=context, block=block), str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        yield other
        if other.poll() is None:
            other.communicate("")
