"""The kernels' library: compiled once per machine by the C++ compiler that is there, then loaded.

It lies in `$HIGHRANK_CACHE`, else in `highrank_plugins` under `$XDG_CACHE_HOME` or `~/.cache`, by a
name that changes with the sources, the compiler and the processor: machines may share the folder.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "kernels"
COMPILERS = ("c++", "g++", "clang++")
# Numbers are those of the source: nothing is reordered but the sums that say so (omp simd).
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
    "-fopenmp", "-shared", "-fPIC",
)  # fmt: skip
SECONDS = 300


class Unavailable(Exception):
    """Why there is no library."""


@functools.cache
def library() -> ctypes.CDLL | Unavailable:
    """The library, or why there is none; found out once per process."""
    try:
        return _load(_compiled())
    except Unavailable as reason:
        return reason


def _compiled() -> Path:
    compiler = _compiler()
    path = _folder() / f"kernels-{_fingerprint(compiler)}.so"
    if not path.exists():
        _compile(compiler, path)
    return path


def _compiler() -> str:
    asked = os.environ.get("CXX")
    found = [shutil.which(name) for name in ([asked] if asked else COMPILERS)]
    for path in found:
        if path is not None:
            return path
    raise Unavailable(
        f"there is no C++ compiler {asked!r}, which CXX names"
        if asked
        else f"there is no C++ compiler ({', '.join(COMPILERS)}); install one, or name it by CXX"
    )


def _folder() -> Path:
    asked = os.environ.get("HIGHRANK_CACHE")
    above = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(asked) if asked else Path(above, "highrank_plugins")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{folder} cannot be made ({error.strerror}); name another by HIGHRANK_CACHE"
        ) from error
    return folder


def _fingerprint(compiler: str) -> str:
    parts = [_output([compiler, "--version"]), *FLAGS, _processor()]
    parts += [path.read_text(encoding="utf-8") for path in sorted(SOURCES.iterdir())]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """What -march=native looks at."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "flags", "CPU part", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(names)}))


def _compile(compiler: str, path: Path) -> None:
    logger.info("compiling the loss kernels for this machine (once, some seconds): %s", path)
    sources = [str(source) for source in sorted(SOURCES.glob("*.cpp"))]
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder, path.name)
            _output([compiler, *FLAGS, *sources, "-o", str(made)])
            made.replace(path)  # whole or not at all, whoever else compiles
    except OSError as error:
        raise Unavailable(
            f"{path.parent} cannot be written to ({error.strerror}); name another folder by "
            "HIGHRANK_CACHE"
        ) from error


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _load(path: Path) -> ctypes.CDLL:
    import torch  # noqa: F401  (its OpenMP comes first, so that there is one pool of threads)

    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} cannot be loaded ({error}); delete it") from error
