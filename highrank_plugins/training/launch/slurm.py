"""Write the batch script with which SLURM starts a training run, a task of srun per process."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common.files import write_text
from highrank_plugins.common.stop_request import DIRECTORY, REQUEUE
from highrank_plugins.training.command_line import by_option
from highrank_plugins.training.launch.batch_job import (
    batch_script,
    check_characters,
    check_time_limit,
    log_pattern,
    parsed,
    quoted,
    slurm_program,
    submit,
)
from highrank_plugins.training.launch.plan import PORT, Plan, environment, rank_words

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


@dataclass(frozen=True)
class Job:
    """Hold what is requested of SLURM besides nodes and GPUs.

    Attributes:
        one_gpu_each: each task sees its own GPU only, instead of all GPUs of its node.
        grace: seconds before the time limit at which a checkpoint is written.
        directives: further options of sbatch, such as `--partition=gpu`.
    """

    name: str = "highrank"
    one_gpu_each: bool = True
    grace: int = 180
    directives: Sequence[str] = ()


def sbatch_script(plan: Plan, job: Job) -> str:
    """Return the script, in which a job that was asked to stop requeues itself."""
    gpus, srun = {}, ["srun", "--kill-on-bad-exit=1"]
    if plan.gpus and job.one_gpu_each:
        gpus = {"gpus-per-task": "1"}
    elif plan.gpus:
        gpus, srun = {"gpus-per-node": str(plan.per_node)}, [*srun, "--gpu-bind=none"]
    options = {
        "job-name": job.name,
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
    rows = [[*srun, *quoted(gpus)], *by_option(rank_words(plan, MEETING))]
    command = " \\\n    ".join(" ".join(map(_quote, row)) for row in rows)
    return batch_script(
        "launch --slurm",
        [*quoted(options), *(_directive(option, job.grace) for option in job.directives)],
        _PREPARE.format(**values),
        f"USR1 {command}",
        _FINISH.format(**values),
    )


def _directive(option: str, grace: int) -> str:
    """Return an option of --sbatch with its value in quotes, where it needs them."""
    check_characters([option])
    try:
        name, given = parsed(option)
    except ValueError as error:
        raise ValueError(f"--sbatch={option}: {error}") from None
    if name == "time":
        try:
            check_time_limit(given, grace)
        except ValueError as error:
            raise ValueError(f"--sbatch={option}: {error}, or lower --grace") from None
    before, sign, value = option.partition("=")
    try:
        is_word = len(shlex.split(value)) <= 1
    except ValueError:  # a single quote
        is_word = False
    return before + sign + (value if is_word else shlex.quote(value))


def _quote(word: str) -> str:
    return f'"{word}"' if word == MEETING else shlex.quote(word)


def submit_once(plan: Plan, job: Job, script: Path, text: str) -> str:
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
    has_output = any(parsed(option)[0].startswith("ou") for option in job.directives)
    log = "where --output of sbatch says" if has_output else f"{plan.log_dir}/slurm-{number}.log"
    return f"sbatch {script}: job {number}; its log is {log}"
