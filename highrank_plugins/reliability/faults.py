"""Try all faults in a folder, one after the other."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from highrank_plugins.reliability.file_system import (
    flush_and_link,
    replace_while_reading,
    start_twice,
)
from highrank_plugins.reliability.finding import Finding
from highrank_plugins.reliability.saves import fill_disk, kill_saves
from highrank_plugins.reliability.trainings import stall_rank

FAULTS: tuple[Callable[[Path], Finding], ...] = (
    kill_saves, fill_disk, start_twice, replace_while_reading, flush_and_link, stall_rank,
)  # fmt: skip


def try_faults(folder: Path) -> Iterator[Finding]:
    """Yield how each fault ended on the disk of a folder; leave nothing there.

    This takes about a minute on two idle cores.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; name a folder on the disk to test")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{folder} cannot be written to; name a folder that you can write to")
    for fault in FAULTS:
        with TemporaryDirectory(prefix=".highrank-faults-", dir=folder.resolve()) as inner:
            try:
                yield fault(Path(inner))
            except OSError as error:
                yield Finding(fault.__name__.replace("_", " "), False, str(error))
