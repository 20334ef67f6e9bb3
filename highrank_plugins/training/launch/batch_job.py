"""Write and submit batch scripts of SLURM, by one template: of a training run, or of a study.

A training run is a task of srun per process.
"""

import re
import shlex
import subprocess
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from highrank_plugins.common.files import write_text
from highrank_plugins.common.stop_request import DIRECTORY, REQUEUE
from highrank_plugins.training.blocks import LaunchSettings
from highrank_plugins.training.command_line import by_option
from highrank_plugins.training.launch.plan import PORT, Plan, environment, rank_words

EARLY = 60  # SLURM may send the signal of --signal this many seconds early


def batch_script(
    writer: str,
    directives: Iterable[str],
    prepare: str,
    command: str,
    finish: str,
    prologue: str = "",
) -> str:
    """Return the script of `highrank WRITER`, in lines of bash that a person can change.

    The `command` begins with the signal that SLURM's warning becomes; `finish` reads its exit code
    in `code`. The prologue comes first: what activates an environment seldom survives `set -u`.
    """
    lines = [f"#SBATCH {directive}" for directive in directives]
    check_characters(lines)
    parts = {"writer": writer, "directives": "\n".join(lines), "prepare": prepare}
    parts |= {"command": command, "finish": finish, "prologue": prologue}
    template = Path(__file__).with_suffix(".sh").read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], template)


def submit(script: Path) -> str:
    """Submit a script by sbatch, and return the number of its job."""
    sent = slurm_program("sbatch", "--parsable", str(script))
    if sent.returncode:
        raise ValueError(f"sbatch {script}: {sent.stderr.strip()}")
    return sent.stdout.strip().partition(";")[0]  # a cluster's name may follow


def slurm_program(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of SLURM, and return what it says."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        line = shlex.join(words)
        raise ValueError(f"{line}: {words[0]} is missing on this machine") from None


def quoted(options: Mapping[str, str | None]) -> list[str]:
    """Return options of sbatch, which reads quotes as a shell does; None has no value."""
    return [
        f"--{name}" if value is None else f"--{name}={shlex.quote(value)}"
        for name, value in options.items()
    ]


def check_characters(words: Iterable[str]) -> None:
    """Refuse words with characters that could end a line of a script, or that it cannot hold."""
    for word in words:
        for character in word:
            if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
                raise ValueError(f"{word!r}: a batch script cannot have {character!r}: remove it")


def parsed(option: str) -> tuple[str, str]:
    """Return name and value of `--name` or `--name=value`; refuse what a script cannot have."""
    found = re.fullmatch(r"--([a-z][a-z-]+)(?:=(.*))?", option, re.DOTALL)
    if found is None or re.search(r"\s-", option):
        raise ValueError("give one option of sbatch by its name, such as --partition=gpu")
    if "array".startswith(found[1]):  # sbatch also takes the first letters
        raise ValueError("the script decides whether its job is an array: remove it")
    return found[1], found[2] or ""


def log_pattern(path: object) -> str:
    """Return a path of which SLURM replaces nothing."""
    return str(path).replace("%", "%%")


def check_time_limit(limit: str, grace: int) -> None:
    """Refuse a limit, such as 90 or 1-12:00:00, at which SLURM could ask a job to stop at once."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if found is None:  # UNLIMITED, and what only sbatch can judge
        return
    days, *parts = (int(part or 0) for part in found.groups())
    if found[1] is None and found[4] is None:
        parts = [0, *parts]  # minutes, and perhaps seconds
    seconds = ((days * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]
    if 0 < seconds <= grace + EARLY:  # 0: no limit
        raise ValueError(
            f"{limit} is {seconds} s, but SLURM asks the job to stop {grace} to {grace + EARLY} s "
            f"before that; give more than {(grace + EARLY) / 60:g} minutes"
        )


MEETING = "tcp://$host:$port"  # with variables of the script
JOB = "job"  # a file in the log directory with the number of the last job
_PREPARE = """\
{exports}
export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-1}}"
# srun does not inherit this from the job (SLURM 22.05)
[[ -z ${{SLURM_CPUS_PER_TASK-}} ]] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(({port} + SLURM_JOB_ID % 20000)) # two jobs on one node get two ports
restart=${{SLURM_RESTART_COUNT:-0}}
echo "job $SLURM_JOB_ID, restart $restart: {world_size} processes meet at $host:$port"
# tasks that were asked to stop note it there, and end with exit code 0: at another code srun kills
# the tasks that are still ending
export {directory}={log_dir}/stop-$SLURM_JOB_ID
rm -rf -- "${directory}"
mkdir -p -- "${directory}"
rm -f -- {finished}
"""
_FINISH = """\
if [[ -e ${directory}/stopped ]]; then code={requeue}; fi
rm -rf -- "${directory}"
if ((code == 0)); then
    touch {finished}
elif ((code == {requeue})); then
    requeue
fi"""


def directives_of(job: LaunchSettings) -> list[str]:
    """Return the options of sbatch that a launch is given."""
    own = {"account": job.account, "qos": job.qos, "mem": job.mem}
    named = [f"--{name}={value}" for name, value in own.items() if value is not None]
    return [*named, *(job.sbatch or ())]


def sbatch_script(plan: Plan, job: LaunchSettings) -> str:
    """Return the script, in which a job that was asked to stop requeues itself."""
    gpus, srun = {}, ["srun", "--kill-on-bad-exit=1"]
    if plan.gpus and not job.all_gpus_each:
        gpus = {"gpus-per-task": "1"}
    elif plan.gpus:
        gpus, srun = {"gpus-per-node": str(plan.per_node)}, [*srun, "--gpu-bind=none"]
    options = {
        "job-name": Path(job.slurm or "highrank").stem,
        "nodes": str(plan.nodes),
        "ntasks-per-node": str(plan.per_node),
        **gpus,
        "output": f"{log_pattern(plan.log_dir)}/slurm-%j.log",
        "open-mode": "append",
        "requeue": None,
        "signal": f"USR1@{job.grace}",
    }
    values = {
        "directory": DIRECTORY,
        "exports": "\n".join(
            f"export {name}={shlex.quote(value)}"
            for name, value in environment(plan).items()
            if name != "OMP_NUM_THREADS"  # the job's cores count, not those of this machine
        ),
        "finished": shlex.quote(str(plan.finished)),
        "log_dir": shlex.quote(str(plan.log_dir)),
        "port": PORT,
        "requeue": REQUEUE,
        "world_size": plan.world_size,
    }
    rows = map(shlex.join, [[*srun, *quoted(gpus)], *by_option(rank_words(plan, MEETING))])
    command = " \\\n    ".join(rows).replace(f"'{MEETING}'", f'"{MEETING}"')
    prologue = "" if job.prologue is None else _prologue(job.prologue)
    if prologue:
        command = command.replace(" \\\n", ' "${container[@]}" \\\n', 1)
    return batch_script(
        "launch --slurm",
        [*quoted(options), *(_directive(option, job.grace) for option in directives_of(job))],
        _PREPARE.format(**values),
        f"USR1 {command}",
        _FINISH.format(**values),
        prologue,
    )


def _prologue(file: Path) -> str:
    """Return the user's bash, after an array of words that go before the command of a process."""
    checked = subprocess.run(["bash", "-n", file], capture_output=True, text=True, check=False)
    if checked.returncode:
        raise ValueError(f"--prologue: {checked.stderr.strip()}")
    return f"container=()\n{file.read_text(encoding='utf-8').rstrip()}\n"


def _directive(option: str, grace: int) -> str:
    """Return an option of --sbatch with its value in quotes, where it needs them."""
    check_characters([option])
    lower = ""
    try:
        name, value = parsed(option)
        if name == "time":
            lower = ", or lower --grace"
            check_time_limit(value, grace)
    except ValueError as error:
        raise ValueError(f"--sbatch={option}: {error}{lower}") from None
    try:
        is_word = len(shlex.split(value)) <= 1
    except ValueError:  # a single quote
        is_word = False
    return option if is_word else f"--{name}={shlex.quote(value)}"


def submit_once(plan: Plan, job: LaunchSettings, script: Path, text: str) -> str:
    """Submit the script unless an earlier job of this run is in the queue; say where its log is."""
    kept = plan.log_dir / JOB
    if kept.exists():
        number = kept.read_text(encoding="utf-8").strip()
        asked = slurm_program("squeue", "--noheader", "--format", "%T", "--jobs", number)
        if asked.returncode and "Invalid job id" not in asked.stderr:
            raise ValueError(
                f"squeue does not say whether job {number} of this run is still in the queue "
                f"({asked.stderr.strip() or asked.returncode}): try again, or delete {kept} "
                "if it is not"
            )
        if state := asked.stdout.strip():
            raise ValueError(f"job {number} of this run is still in the queue ({state})")
    write_text(script, text)
    number = submit(script)
    write_text(kept, f"{number}\n")
    plan.finished.unlink(missing_ok=True)  # the job does this, too, but may have to wait
    log = f"{plan.log_dir}/slurm-{number}.log"
    return f"sbatch {script}: job {number}; its log is {log}, or where --output of sbatch says"
