"""Compare the disk space that a study will take with what is free."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from highrank_plugins.common.formatting import size
from highrank_plugins.studies.prepared import PreparedMember


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder; links do not count."""
    files = (path for path in folder.rglob("*") if not path.is_symlink() and path.is_file())
    return sum(path.stat().st_size for path in files)


def bytes_needed(members: Sequence[PreparedMember]) -> int:
    """Return the bytes that unfinished members will still write.

    A member takes as much as a finished member of its system, or else as the largest of the others.
    """
    sizes = {m.member.system: bytes_in(m.run_dir) for m in members if m.is_done()}
    largest = max(sizes.values(), default=0)
    return sum(
        max(0, sizes.get(member.member.system, largest) - _written(member))
        for member in members
        if not member.is_done()
    )


def _written(member: PreparedMember) -> int:
    return bytes_in(member.run_dir) if member.run_dir.is_dir() else 0


def check_disk(members: Sequence[PreparedMember]) -> None:
    """Refuse to start members that will not fit on the disk."""
    needed = bytes_needed(members)
    folder = members[0].run_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"the study needs {size(needed)} more on the disk of {folder}, which has "
            f"{size(free)} free: delete files, or write elsewhere with --exp-dir"
        )
