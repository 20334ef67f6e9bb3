"""Run the members of a study: here, one for each core or GPU, or as an array of SLURM's jobs."""

import fcntl
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common import stop_request
from highrank_plugins.common.files import open_own, require_space, write_text
from highrank_plugins.common.processes import usable_cores
from highrank_plugins.common.provenance import hardware, machine_kind
from highrank_plugins.results.record import RESULTS
from highrank_plugins.studies.definition import Study, as_word
from highrank_plugins.studies.members import DIVERGED, PreparedMember
from highrank_plugins.training.launch import batch_job

WAIT = 0.05  # seconds between two polls of the running members
# messages of fairseq and our layers about a training run whose loss is NaN
_DIVERGED = re.compile(
    r"FloatingPointError|Minimum loss scale reached|\b(loss|gradient)s?\b.*\bnan\b", re.IGNORECASE
)
USAGE = 2  # exit code of a recipe that refuses its options or text
_REFUSAL = re.compile(r"^(?:highrank: |[-\d]{10} [:\d]{8} error: )(.+)", re.MULTILINE)
_TAIL = 20_000  # bytes at the end of a log that are read
GRACE = 180  # seconds before its time limit at which a task is warned
# SLURM warns the script alone, and later ends every process of the task
_REQUEUE = "if [[ -n $asked ]] && ((code > 0)); then requeue; fi"
GPU = "CUDA_VISIBLE_DEVICES"
Environment = Mapping[str, str]


@dataclass
class Running:
    """Hold a started member; its output begins at `begin` in the log."""

    member: PreparedMember
    environment: Environment
    process: subprocess.Popen[bytes]
    log: Path
    begin: int


def slots(threads: int, jobs: int | None) -> list[Environment]:
    """Return the environment of each member that may run at the same time, at most `jobs`."""
    gpus, cores = visible_gpus(), usable_cores()
    most = min(cores // threads, len(gpus) or cores)
    if (jobs or 1) > most:
        raise ValueError(
            f"--jobs {jobs or 1}: this machine has {cores} cores and {len(gpus)} GPUs, for {most} "
            f"members at a time with {threads} threads each; lower --jobs, or threads in the study"
        )
    shared = {"OMP_NUM_THREADS": str(threads)}
    return [shared | ({GPU: gpus[n]} if gpus else {}) for n in range(jobs or most)]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, without importing torch."""
    chosen = os.environ.get(GPU)
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu and gpu != "-1"]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
        return []
    return [str(number) for number in range(len(re.findall(r"^GPU \d+:", listed, re.MULTILINE)))]


def claim(folder: Path, file: Path) -> None:
    """Refuse the folder of another study with this name."""
    own, line = folder / ".study", f"{file.resolve()}\n"
    folder.mkdir(parents=True, exist_ok=True)
    there = own.read_text(encoding="utf-8") if own.exists() else ""
    other = Path(there.strip())
    if other.is_file() and not other.samefile(file):
        raise ValueError(
            f"{folder}: has the logs and tables of {other}; give {file} another name, or choose "
            "another --exp-dir"
        )
    if there != line:  # members that start at once write the same
        own.write_text(line, encoding="utf-8")


def run_members(
    members: Sequence[PreparedMember],
    logs: Path,
    environments: Sequence[Environment],
    say: Callable[[str], None],
) -> None:
    """Run unfinished members in order; a failing one, noted in its folder, stops no other."""
    waiting, free = list(members), list(environments)
    logs.mkdir(parents=True, exist_ok=True)
    running: list[Running] = []
    told: set[str] = set()
    with stop_request.handlers_restored():
        for number in (signal.SIGTERM, signal.SIGINT):  # ends this process after its recipes
            signal.signal(number, _stop)
        try:
            while waiting or running:
                elsewhere = _elsewhere(waiting, told, say)
                if waiting and free and not elsewhere:  # these may have any core or GPU
                    require_space(members[0].run_dir, bytes_needed(members))
                    running.append(start(waiting.pop(0), free.pop(0), logs))
                    say(f"{running[-1].member.name}: started, log {running[-1].log}")
                    continue
                for one in [one for one in running if one.process.poll() is not None]:
                    running.remove(one)
                    free.append(one.environment)
                    say(f"{one.member.name}: {ended(one)}; {len(waiting) + len(running)} left")
                time.sleep(WAIT)
        finally:
            end([one.process for one in running])


def start(member: PreparedMember, environment: Environment, logs: Path) -> Running:
    log = logs / f"{member.name}.log"
    member.note("failed").unlink(missing_ok=True)
    begin = log.stat().st_size if log.exists() else 0
    with open_own(log, "ab") as file:
        process = subprocess.Popen(
            member.command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # one process group, which is killed together
        )
    return Running(member, environment, process, log, begin)


def _tail(path: Path, begin: int = 0) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL))
        return file.read().decode(errors="replace")


def ended(one: Running) -> str:
    """Record how a recipe ended, and return it."""
    member, code = one.member, one.process.returncode
    tail = _tail(one.log, one.begin)
    what = f"failed with exit code {code}" if code else f"has written no valid {RESULTS}"
    if code == 0:
        with suppress(ValueError, OSError):
            member.metrics()
            write_text(member.note("done"), member.name + "\n")
            return member.problem() or "done"
    if code == stop_request.REQUEUE:
        what = "stopped; run the same command to resume it"
    elif code == USAGE and (said := _REFUSAL.findall(tail)):
        what = f"refused: {said[-1]}"
    elif _DIVERGED.search(tail):
        what = DIVERGED
    write_text(member.note("failed"), what + "\n")
    return what


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask recipes to stop, and wait: their training runs save a checkpoint first."""
    for process in processes:
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        process.wait()
        with suppress(ProcessLookupError):  # until the last one of its group has ended
            while True:
                os.killpg(process.pid, 0)
                time.sleep(WAIT)


def in_use(run_dir: Path) -> bool:
    lock = run_dir / ".lock"
    if lock.is_file():
        with open_own(lock, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as the flock of the recipes
            except BlockingIOError:
                return True
    return False


def check_machine(members: Sequence[PreparedMember]) -> None:
    """Refuse to run a seed on another kind of machine than its other members: seeds are blocks."""
    waiting = {member.seed for member in members if not member.is_done()}
    done = [one for one in members if one.seed in waiting and one.machine()]
    here = machine_kind(hardware()) if done else ""
    for one in done:
        if here and one.machine() != here:
            raise ValueError(
                f"{one.name} ran on {one.machine()}, and this machine is {here}: one seed has "
                "other numbers on each; resume there, or take another --exp-dir"
            )


def _elsewhere(
    waiting: list[PreparedMember], told: set[str], say: Callable[[str], None]
) -> list[PreparedMember]:
    """Drop members that are done, and return those that another process works on."""
    for member in [member for member in waiting if member.is_done()]:
        waiting.remove(member)  # perhaps just now, by another study
        say(f"{member.name}: already done")
    elsewhere = [member for member in waiting if in_use(member.run_dir)]
    for member in elsewhere:
        if member.name not in told:
            told.add(member.name)
            say(f"{member.name}: waiting for a process that works in {member.run_dir}")
    return elsewhere


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files in a folder, 0 if it is missing; links do not count."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a running member renames files
            found = path.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


def bytes_needed(members: Sequence[PreparedMember]) -> int:
    """Return what unfinished members will write: as much as their system's, or the largest."""
    sizes = {m.system: bytes_in(m.run_dir) for m in members if m.is_done()}
    largest = max(sizes.values(), default=0)
    return sum(
        max(0, sizes.get(m.system, largest) - bytes_in(m.run_dir))
        for m in members
        if not m.is_done()
    )


def _stop(number: int, _frame: object) -> None:
    name = signal.Signals(number).name
    print(f"{name}: ending the members; the same command resumes them", file=sys.stderr)
    raise SystemExit(128 + number)


def array_script(
    study: Study,
    members: Sequence[PreparedMember],
    folder: Path,
    command: Sequence[str],
    jobs: int | None,
) -> Path:
    """Write the batch script for the members that are not done, and return it."""
    names = [member.name for member in members if not member.is_done()]
    if not names:
        raise ValueError("every member is done: there is nothing to submit")
    given = {name.replace("_", "-"): value for name, value in study.settings.slurm.items()}
    name = ""
    try:
        for name in given:
            batch_job.parsed(f"--{name}" if re.fullmatch("[a-z-]+", name) else "")
        if "time" in given and "signal" not in given:
            name = "time"
            batch_job.check_time_limit(as_word(given[name]), GRACE)
    except ValueError as error:
        raise ValueError(f"{study.file}: slurm: {name}: {error}") from None
    options = {
        "job-name": study.name,
        "array": f"0-{len(names) - 1}" + (f"%{jobs}" if jobs else ""),
        "cpus-per-task": study.settings.threads,
        "output": f"{batch_job.log_pattern(folder)}/logs/slurm-%A_%a.log",
        "open-mode": "append",
        "requeue": True,
        "signal": f"B:USR1@{GRACE}",
    } | given
    words = {n: None if v is True else as_word(v) for n, v in options.items() if v is not False}
    listed = f"members=({shlex.join(names)})"
    run = f'TERM {shlex.join(command)} --only "${{members[SLURM_ARRAY_TASK_ID]}}"'
    text = batch_job.batch_script("study --slurm", batch_job.quoted(words), listed, run, _REQUEUE)
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    write_text(folder / "array.sh", text)
    return folder / "array.sh"
