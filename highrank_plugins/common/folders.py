"""Write folders, and several files of a folder, completely or not at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from highrank_plugins.common.files import flush, names_full_disk, require_regular
from highrank_plugins.common.user_error import UserError

_STAMP = ".highrank-incomplete"
# the folder within an output where new files wait until all are complete
NEW = ".highrank-new"


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Write a folder as NAME.part; rename it when it is complete, or remove it after a failure.

    All files are flushed before, so that a power failure leaves the whole folder or none.
    Leftovers of an interrupted call are discarded.
    """
    part = folder.with_name(f"{folder.name}.part")
    stamp = part / _STAMP
    if os.path.lexists(part) and not stamp.is_file():
        raise FileExistsError(
            errno.EEXIST,
            "it is in the way, and was not written by this command: move it away, or name another "
            "folder",
            str(part),
        )
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    stamp.touch()
    try:
        with names_full_disk(folder.parent):
            yield part
            for path in (part, *part.rglob("*")):
                if not path.is_symlink():
                    flush(path)
            stamp.unlink()
            os.replace(part, folder)
            flush(folder.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def new_files(folder: Path) -> Iterator[Path]:
    """Write files into another folder; when all are complete, they replace those of their names.

    `refuse_mixture` refuses a folder that was killed while its files were replaced. The next call
    replaces the others before it begins. Other files of the folder are kept.
    """
    _take_places(folder)
    with new_folder(folder / NEW) as part:
        yield part
        for path in _files(part):
            require_regular(folder / path)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
    _take_places(folder)


def _files(folder: Path) -> list[Path]:
    """Return the names of all files in a folder and in the folders below it."""
    return [path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()]


def _take_places(folder: Path) -> None:
    """Move complete new files, if any, to their places."""
    new = folder / NEW
    if new.is_symlink():
        raise UserError(f"{new} is a symbolic link in place of a folder of ours: remove it")
    if new.is_dir():
        for path in _files(new):
            os.replace(new / path, folder / path)
        shutil.rmtree(new)  # comes last, since readers refuse the folder until then
        flush(folder)


def refuse_mixture(folder: Path) -> None:
    """Refuse a folder whose files `new_files` has begun to replace."""
    if (folder / NEW).exists() or (folder.parent / NEW / folder.name).exists():
        raise UserError(
            f"{folder} may hold files of two texts: a `highrank data` command is replacing them, "
            "or was killed before it had finished; run the same command again to complete it"
        )
