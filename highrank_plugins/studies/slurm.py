"""Submit the members of a study to SLURM, as an array of jobs."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from highrank_plugins.common.files import write_text
from highrank_plugins.studies.definition import Study, as_word
from highrank_plugins.studies.members import PreparedMember
from highrank_plugins.training.launch.batch_job import (
    batch_script,
    check_time_limit,
    log_pattern,
    parsed,
    quoted,
)

GRACE = 180  # seconds before its time limit at which a task is warned
# SLURM warns the script alone, and later ends every process of the task
_REQUEUE = "if [[ -n $asked ]] && ((code > 0)); then requeue; fi"


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
        try:
            parsed(f"--{name}" if re.fullmatch("[a-z-]+", name) else "")
        except ValueError as error:
            raise ValueError(f"{study.file}: slurm: {name}: {error}") from None
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
    words = {name: None if value is True else as_word(value) for name, value in chosen.items()}
    text = batch_script(
        "study --slurm",
        quoted(words),
        f"members=({shlex.join(names)})",
        f'TERM {shlex.join(command)} --only "${{members[SLURM_ARRAY_TASK_ID]}}"',
        _REQUEUE,
    )
    write_text(folder / "array.sh", text)
    return folder / "array.sh"
