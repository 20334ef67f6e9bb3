"""Run a command, and observe what it starts, where it writes and how much memory it takes."""

import functools
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.fairseq_cli import _run, attempt

CANARY = "canary"  # every payload tries to make a file with this name
# compiled kernels, and what matplotlib makes when it is imported
_CACHES = str(Path.home() / ".cache"), str(Path.home() / ".config" / "matplotlib")
_MOST = 3 << 30  # bytes of memory that a command may ask for
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_STARTS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pty.spawn")
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod")


class Observed(NamedTuple):
    """Describe a command that has ended."""

    code: int  # minus the number of a signal; that of SIGKILL also after a timeout
    output: str
    effects: list[str]  # programs that it started and paths outside its folder that it changed
    peak: int  # bytes by which its memory grew at most


def observe(command: str, *words: object, folder: Path, stdin: str = "") -> Observed:
    """Run `fairseq-<command>` with our plug-in, or `highrank`, in a folder that it may write to."""
    with tempfile.TemporaryDirectory() as notes:
        effects, peak = Path(notes, "effects"), Path(notes, "peak")
        effects.touch()
        peak.write_text("0")
        child = functools.partial(_child, effects, peak)
        done = attempt(command, *words, stdin=stdin, timeout=60, folder=folder, child=child)
        seen = effects.read_text().splitlines()
        return Observed(done.code, done.output, seen, int(peak.read_text()))


def _child(effects: Path, peak: Path, command: str, argv: list[str], *files: str) -> None:
    log, _, folder = files
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the server
    before, most = _status("VmRSS"), _status("VmSize") + _MOST
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # spare the machine
    notes = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    allowed = (folder, *_CACHES, log, str(peak), "/dev/null", "/dev/shm", "/proc/self")
    sys.addaudithook(lambda event, args: _note(event, args, notes, allowed))
    try:
        _run(command, argv, *files)
    finally:
        peak.write_text(str(_status("VmHWM") - before))


def _note(event: str, args: tuple, notes: int, allowed: tuple[str, ...]) -> None:
    paths: tuple = ()
    if (event == "open" and args[2] and args[2] & _WRITES) or event in _CHANGES:
        paths = args[:1] if event == "open" else args[:2]
    elif event in _STARTS and not _is_ours(args):
        os.write(notes, f"{event} {args[:2]!r}\n".encode())
    for path in (os.path.realpath(os.fsdecode(p)) for p in paths if isinstance(p, str | bytes)):
        if not path.startswith(allowed) and "__pycache__" not in path:
            os.write(notes, f"{event} {path!r}\n".encode())


def _is_ours(args: tuple) -> bool:
    """Whether a program is one that commands ask about the machine, or Python's own helper."""
    words = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else [args[0]]
    program = os.path.basename(os.fsdecode(args[0] or words[0]))
    known = ("git", "uname", "lscpu", "nvidia-smi", "ldconfig", "c++", "g++", "gcc", "cc", "ld")
    return CANARY not in repr(args) and (
        program in known or program == os.path.basename(sys.executable)
    )


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
