"""Submit the members of a study to SLURM, as an array of jobs."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from highrank_plugins.common.files import write_text
from highrank_plugins.studies.definition import Study, as_word
from highrank_plugins.studies.members import PreparedMember
from highrank_plugins.training.launch.batch_job import (
    FUNCTIONS,
    check_time_limit,
    directives,
    log_pattern,
    objection,
)

GRACE = 180  # seconds before its time limit at which a task is warned
_SCRIPT = """\
#!/usr/bin/env bash
# Written by `highrank study --slurm`: a task for each member; submit it from where it was written.
{directives}
set -uo pipefail

{functions}
members=({names})
# SLURM warns this shell alone, and later ends every process of the task
run TERM {command} --only "${{members[SLURM_ARRAY_TASK_ID]}}"
code=$?
if [[ -n $asked ]] && ((code > 0)); then requeue; fi
exit "$code"
"""


def array_script(
    study: Study,
    members: Sequence[PreparedMember],
    folder: Path,
    command: Sequence[str],
    jobs: int | None,
) -> Path:
    """Write the batch script for the members that are not done, and return it.

    SLURM copies the script, with the names in it: another submission changes no waiting task.
    A task that is preempted, or near its time limit, saves a checkpoint and is queued again.

    Args:
        command: command line of the study, without --only.
        jobs: largest number of tasks at a time.
    """
    names = [member.name for member in members if not member.is_done()]
    if not names:
        raise ValueError("every member is done: there is nothing to submit")
    given = {name.replace("_", "-"): value for name, value in study.settings.slurm.items()}
    for name in given:
        if why := objection(f"--{name}" if re.fullmatch("[a-z-]+", name) else ""):
            raise ValueError(f"{study.file}: slurm: {name}: {why}")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    limit = f"%{jobs}" if jobs else ""
    options = {
        "job-name": study.name,
        "array": f"0-{len(names) - 1}{limit}",
        "cpus-per-task": study.settings.threads,
        "output": f"{log_pattern(folder)}/logs/slurm-%A_%a.log",
        "open-mode": "append",
        "requeue": True,
        "signal": f"B:USR1@{GRACE}",
    } | given
    if "time" in given and "signal" not in given:
        try:
            check_time_limit(as_word(given["time"]), GRACE)
        except ValueError as error:
            raise ValueError(f"{study.file}: slurm: time: {error}") from None
    chosen = {name: value for name, value in options.items() if value is not False}
    script = folder / "array.sh"
    write_text(
        script,
        _SCRIPT.format(
            directives=directives(
                {name: None if value is True else as_word(value) for name, value in chosen.items()}
            ),
            functions=FUNCTIONS,
            names=shlex.join(names),
            command=shlex.join(command),
        ),
    )
    return script


def submit(script: Path) -> str:
    """Submit the script, and return the message of sbatch."""
    try:
        done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError(f"--slurm: sbatch is missing; the script is {script}") from None
    if done.returncode:
        raise ValueError(f"sbatch refuses {script}: {done.stderr.strip()}")
    return done.stdout.strip()
