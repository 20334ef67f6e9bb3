"""Submit the members of a study to SLURM, as an array of jobs."""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from highrank_plugins.common.files import write_text
from highrank_plugins.studies.definition import Study, as_word
from highrank_plugins.studies.prepared import PreparedMember

_SCRIPT = """\
#!/usr/bin/env bash
# Written by `highrank study --slurm`: a task for each member; submit it from where it was written.
{directives}
set -euo pipefail
mapfile -t members < {list}
exec {command} --only "${{members[SLURM_ARRAY_TASK_ID]}}"
"""


def array_script(
    study: Study,
    members: Sequence[PreparedMember],
    folder: Path,
    command: Sequence[str],
    jobs: int | None,
) -> Path:
    """Write the batch script and the list of members that are not done; return the script.

    Args:
        command: command line of the study, without --only.
        jobs: largest number of tasks at a time.
    Raises:
        ValueError: all members are done.
    """
    names = [member.name for member in members if not member.is_done()]
    if not names:
        raise ValueError("every member is done: there is nothing to submit")
    write_text(folder / "members.txt", "".join(f"{name}\n" for name in names))
    (folder / "logs").mkdir(exist_ok=True)
    limit = f"%{jobs}" if jobs else ""
    options = {
        "job-name": study.name,
        "array": f"0-{len(names) - 1}{limit}",
        "cpus-per-task": study.settings.threads,
        "output": folder / "logs" / "slurm-%A_%a.log",
    } | study.settings.slurm
    directives = "\n".join(
        f"#SBATCH --{name.replace('_', '-')}={as_word(value)}" for name, value in options.items()
    )
    script = folder / "array.sh"
    write_text(
        script,
        _SCRIPT.format(
            directives=directives,
            list=shlex.quote(str(folder / "members.txt")),
            command=shlex.join(command),
        ),
    )
    return script


def submit(script: Path) -> str:
    """Submit the script, and return the message of sbatch.

    Raises:
        ValueError: sbatch is missing, or refuses the script.
    """
    try:
        done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError(f"--slurm: sbatch is missing; the script is {script}") from None
    if done.returncode:
        raise ValueError(f"sbatch refuses {script}: {done.stderr.strip()}")
    return done.stdout.strip()
