"""Write the batch script with which SLURM starts a training run, a task of srun per process."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from highrank_plugins.common.files import write_text
from highrank_plugins.common.stop_request import DIRECTORY, REQUEUE
from highrank_plugins.training.command_line import by_option
from highrank_plugins.training.launch.batch_job import (
    FUNCTIONS,
    check_characters,
    check_time_limit,
    directives,
    log_pattern,
    long_name,
    objection,
)
from highrank_plugins.training.launch.plan import PORT, Plan
from highrank_plugins.training.launch.torchrun import environment, rank_words

MEETING = "tcp://$host:$port"  # with variables of the script
JOB = "job"  # a file in the log directory with the number of the last job
_SCRIPT = """\
#!/usr/bin/env bash
# Written by `highrank launch --slurm`; submit it from the folder where it was written.
{directives}
set -uo pipefail

{functions}
{exports}
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

run USR1 {srun}
code=$?
if [[ -e ${directory}/stopped ]]; then code={requeue}; fi
rm -rf -- "${directory}"
if ((code == 0)); then
    touch {finished}
elif ((code == {requeue})); then
    requeue
fi
exit "$code"
"""


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
    gpus = _gpu_options(plan, job)
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
    check_characters(job.directives)
    for option in job.directives:
        if why := objection(option):
            raise ValueError(f"--sbatch={option}: {why}")
        if given := re.fullmatch(r"(?:--time[= ]|-t[= ]?)(\S+)", option):
            try:
                check_time_limit(given[1], job.grace)
            except ValueError as error:
                raise ValueError(f"--sbatch={option}: {error}, or lower --grace") from None
    rank = rank_words(plan, MEETING)
    srun = ["srun", "--kill-on-bad-exit=1", *_bindings(plan, job)]
    rows = [[*srun, *(f"--{name}={value}" for name, value in gpus.items())], *by_option(rank)]
    return _SCRIPT.format(
        directives=directives(options, job.directives),
        functions=FUNCTIONS,
        exports="\n".join(_exports(plan)),
        port=PORT,
        finished=shlex.quote(str(plan.finished)),
        log_dir=shlex.quote(str(plan.log_dir)),
        directory=DIRECTORY,
        world_size=plan.world_size,
        requeue=REQUEUE,
        srun=" \\\n    ".join(" ".join(map(_quote, row)) for row in rows),
    )


def log_of(plan: Plan, job: Job, number: str) -> str:
    """Say where a submitted job writes its log."""
    if any(long_name(option).startswith("ou") for option in job.directives):
        return "where --output of sbatch says"
    return f"{plan.log_dir}/slurm-{number}.log"


def check_queue(log_dir: Path) -> None:
    """Refuse to start while an earlier job of the same training run is in the queue."""
    kept = log_dir / JOB
    if kept.exists():
        job = kept.read_text(encoding="utf-8").strip()
        asked = _output("squeue", "--noheader", "--jobs", job, "--format", "%T")
        if asked.returncode and "Invalid job id" not in asked.stderr:
            raise ValueError(
                f"squeue does not say whether job {job} of this run is still in the queue "
                f"({asked.stderr.strip() or asked.returncode}): try again, or delete {kept} "
                "if it is not"
            )
        state = asked.stdout.strip()
        if state:
            raise ValueError(f"job {job} of this run is still in the queue ({state})")


def submit(script: Path, log_dir: Path) -> str:
    """Submit a script by sbatch; return the number of its job, which is also kept in `log_dir`."""
    sent = _output("sbatch", "--parsable", str(script))
    if sent.returncode:
        raise ValueError(f"sbatch {script}: {sent.stderr.strip()}")
    job = sent.stdout.strip().partition(";")[0]  # a cluster's name may follow
    write_text(log_dir / JOB, f"{job}\n")
    return job


def _output(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ValueError(f"--submit: {words[0]} is missing on this machine") from None


def _gpu_options(plan: Plan, job: Job) -> dict[str, str]:
    if not plan.gpus:
        return {}
    return {"gpus-per-task": "1"} if job.one_gpu_each else {"gpus-per-node": str(plan.per_node)}


def _bindings(plan: Plan, job: Job) -> list[str]:
    return ["--gpu-bind=none"] if plan.gpus and not job.one_gpu_each else []


def _exports(plan: Plan) -> list[str]:
    variables = environment(plan)
    # the job's cores count, not those of the machine where the script is written
    del variables["OMP_NUM_THREADS"]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    cores = "SLURM_CPUS_PER_TASK"
    return [
        *lines,
        f'export OMP_NUM_THREADS="${{{cores}:-1}}"',
        # srun does not inherit this from the job (SLURM 22.05)
        f'[[ -z ${{{cores}-}} ]] || export SRUN_CPUS_PER_TASK="${cores}"',
    ]


def _quote(word: str) -> str:
    return f'"{word}"' if word == MEETING else shlex.quote(word)
