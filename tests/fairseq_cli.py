"""Runs fairseq's commands as forks of one process that has imported it, which costs 8 s."""

import gc
import importlib
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
COMMANDS = {
    "preprocess": "fairseq_cli.preprocess",
    "train": "fairseq_cli.train",
    "generate": "fairseq_cli.generate",
    "interactive": "fairseq_cli.interactive",
    "eval-lm": "fairseq_cli.eval_lm",
    "validate": "fairseq_cli.validate",
    "hydra-train": "fairseq_cli.hydra_train",
}
os.environ.setdefault("OMP_NUM_THREADS", "1")
FORKS = multiprocessing.get_context("forkserver")
# only this server forks, so that nothing which ran in pytest's process leaks into a command;
# torch imports its compiler, which takes 1.5 s, when an optimizer is made
FORKS.set_forkserver_preload([*COMMANDS.values(), "tests.built", "torch._dynamo"])


@dataclass
class Finished:
    """Hold the exit status and everything that a command printed."""

    code: int
    output: str

    def lines(self, start: str) -> list[str]:
        """Return the lines that begin with `start`."""
        return [line for line in self.output.splitlines() if line.startswith(start)]


class CommandFailed(AssertionError):
    """Signal that a command failed that should have succeeded."""


def attempt(
    command: str,
    *arguments: object,
    stdin: str = "",
    timeout: float = 120,
    folder: Path | None = None,
    child: Callable[..., None] | None = None,
) -> Finished:
    """Run `fairseq-<command>` with our plug-in, or `highrank`, and return how it ended.

    Args:
        folder: where the command runs; None: where the tests do.
        child: what runs it; None: `_run`, whose arguments it gets.
    """
    argv = [f"fairseq-{command}", *map(str, arguments)]
    if command not in ("preprocess", "hydra-train", "highrank") and "--user-dir" not in argv:
        argv += ["--user-dir", str(REPOSITORY / "highrank_plugins")]
    with tempfile.TemporaryDirectory() as temporary:
        log, typed = Path(temporary, "log"), Path(temporary, "stdin")
        typed.write_text(stdin)
        files = (str(log), str(typed), str(folder or Path.cwd()))
        process = FORKS.Process(target=child or _run, args=(command, argv, *files))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
        output = log.read_text(errors="replace") if log.exists() else ""
        return Finished(process.exitcode, output)


def run(command: str, *arguments: object, **options) -> Finished:
    """Do as `attempt`, but raise an error with the end of the output after a failure."""
    done = attempt(command, *arguments, **options)
    if done.code != 0:
        raise CommandFailed(f"{command} {arguments} ended with {done.code}:\n{done.output[-4000:]}")
    return done


def _run(command: str, argv: list[str], log: str, typed: str, folder: str = os.curdir) -> None:
    os.chdir(folder)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(typed, os.O_RDONLY), 0)
    sys.stdin = os.fdopen(0)
    sys.argv = argv
    # as in a command of its own; else data workers would start a server that imports all again
    multiprocessing.set_start_method("fork", force=True)
    gc.freeze()  # else each collection visits all that was imported, and copies its pages
    try:
        if command == "highrank":
            importlib.import_module("highrank_plugins.cli").main()
        else:
            importlib.import_module(COMMANDS[command]).cli_main()
    except Exception:  # what the interpreter does with any error of a command
        sys.excepthook(*sys.exc_info())  # it may call sys.exit
        sys.exit(1)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def in_processes(target: Callable[..., None], calls: Iterable[tuple], seconds: float = 120) -> None:
    """Call a function in several processes at once, and end those that take too long."""
    children = [FORKS.Process(target=target, args=arguments) for arguments in calls]
    for child in children:
        child.start()
    for child in children:
        child.join(seconds)
        child.kill()
