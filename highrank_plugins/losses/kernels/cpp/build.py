"""Build the kernels' library once per machine with the installed C++ compiler, and load it.

It is kept in `$HIGHRANK_CACHE`, else in `highrank_plugins` under `$XDG_CACHE_HOME` or `~/.cache`.
Its name changes with the sources, the compiler and the processor, so a user's machines may share
the folder. The name ends with the file's checksum, and a damaged file is compiled again. A file
that another user could have written or replaced is not loaded.
"""

from __future__ import annotations

import ctypes
import functools
import grp
import hashlib
import logging
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import torch  # noqa: F401  (its OpenMP is loaded first: one pool of threads)

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "sources"
COMPILERS = ("c++", "g++", "clang++")
# Sums are reordered where the code says so (omp simd); a product and a sum may become one
# instruction.
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-fopenmp", "-shared", "-fPIC",
)  # fmt: skip
# By default, compilers prefer vectors of 256 bits to 512; rows of logits are long enough for 512.
WIDE_VECTORS = "-mprefer-vector-width=512"
# Predefined macros: compiler names, versions, and the features that -march=native detected.
MACROS = ("-march=native", "-dM", "-E", "-x", "c++", os.devnull)
SECONDS = 300


class Unavailable(Exception):
    """Report why the library is missing."""


@functools.cache
def library() -> ctypes.CDLL | Unavailable:
    """Return the library, or why it is missing; decided once per process."""
    reasons = []
    try:
        folder = cache_folder()  # a folder that is not trusted rules out every compiler
        for compiler in _compilers():
            try:
                return ctypes.CDLL(str(_compiled(compiler, folder)))
            except (Unavailable, OSError) as reason:
                reasons.append(str(reason))
    except (Unavailable, OSError, RuntimeError, ValueError) as reason:
        reasons.append(str(reason))
    found = "; ".join(reasons) or f"found no C++ compiler ({', '.join(COMPILERS)})"
    return Unavailable(f"{found}; CXX names the compiler, HIGHRANK_CACHE the folder of the kernels")


def compiler_version() -> str:
    """Return what the preferred compiler calls itself; empty if there is no library."""
    if isinstance(library(), Unavailable):
        return ""
    return _output([*_compilers()[0], "--version"]).splitlines()[0]


def _compilers() -> list[list[str]]:
    """Return the compilers' commands, in order of preference."""
    if asked := shlex.split(os.environ.get("CXX", "")):
        return [asked]
    return [[path] for path in map(shutil.which, COMPILERS) if path is not None]


def _compiled(compiler: list[str], folder: Path) -> Path:
    """Return the file of the library, which is compiled first if need be."""
    macros = _output([*compiler, *MACROS])
    flags = (*FLAGS, WIDE_VECTORS) if "__AVX512F__" in macros else FLAGS
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".cpp", ".hpp"))
    digest = hashlib.sha256("\0".join([*compiler, *flags, macros]).encode())
    for source in sources:
        digest.update(source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    for path in folder.glob(f"{name}-*.so"):
        if path.name == _name_of(name, path.read_bytes()):
            return path
    logger.info(
        "compiling the loss kernels for this machine (once; this takes a few seconds): %s", folder
    )
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary, "made.so")
        units = [str(source) for source in sources if source.suffix == ".cpp"]
        _output([*compiler, *flags, *units, "-o", str(made)])
        made.chmod(0o644)
        return made.replace(folder / _name_of(name, made.read_bytes()))


def _name_of(name: str, content: bytes) -> str:
    return f"{name}-{hashlib.sha256(content).hexdigest()[:16]}.so"


def cache_folder() -> Path:
    """Return the folder of compiled kernels, which no other user can change."""
    asked = os.environ.get("HIGHRANK_CACHE")
    if asked:
        folder = Path(asked)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "highrank_plugins")
    folder = folder.expanduser().absolute()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder = folder.resolve()  # follows links once, before what they lead to is checked
    for path in (folder, *folder.glob("kernels-*.so")):
        _check_owner(path)
    home = _home()
    for parent in folder.parents:
        _check_owner(parent, is_parent=True)
        if parent == home:
            break  # whoever can replace a home needs no kernels
    return folder


def _home() -> Path | None:
    """Return the home that the system knows of this user; the variable HOME may have any value."""
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
    except KeyError:
        return None


def _check_owner(path: Path, is_parent: bool = False) -> None:
    found = path.lstat()
    others = found.st_mode & stat.S_IWOTH or (
        found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid)
    )
    if is_parent and found.st_mode & stat.S_ISVTX:
        others = False  # as in /tmp, nobody replaces what another user owns
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    if found.st_uid not in (0, os.geteuid()) or others or not is_plain:
        raise Unavailable(
            f"{path} {'can be changed by other users' if is_plain else 'is no regular file'}, so "
            "it is not trusted"
        )


def _is_private(group: int) -> bool:
    """Whether this user is the only member of a group, as on systems with a group for each user."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and {*found.gr_mem} <= {user.pw_name}


def _output(command: list[str]) -> str:
    name = command[0]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{name} cannot be run: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or "no message"
        raise Unavailable(f"{name} failed with status {done.returncode}: {said}")
    return done.stdout
