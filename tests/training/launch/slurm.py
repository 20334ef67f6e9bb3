"""SLURM's commands in miniature, for jobs of two tasks on this machine."""

import os
import sys
from pathlib import Path

# starts every task, hands SIGUSR1 to each as slurmstepd does, kills all others when one fails, and
# returns the code of the last that failed, a killed one's too
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys, time
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
tasks = [
    subprocess.Popen(words, env=os.environ | {{"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)}})
    for n in range(int(os.environ["SLURM_NTASKS"]))
]
signal.signal(signal.SIGUSR1, lambda *_: [task.send_signal(signal.SIGUSR1) for task in tasks])
open(os.path.dirname(sys.argv[0]) + "/../srun.pid", "w").write(str(os.getpid()))
code = 0
while tasks:
    for task in [task for task in tasks if task.poll() is not None]:
        tasks.remove(task)
        if task.returncode:
            code = task.returncode if task.returncode > 0 else 128 - task.returncode
            for other in tasks:
                other.terminate()
    time.sleep(0.01)
sys.exit(code)
"""
SCONTROL = """#!/usr/bin/env bash
case "$1 $2" in
    "show hostnames") echo 127.0.0.1 ;;
    "show job") echo "   JobState=${STATE-RUNNING Reason=None} Dependency=(null)" ;;
    *) echo "$*" >>"${0%/*}/../scontrol.log" ;;
esac
"""
# what `queue` holds is the state of the one job
SQUEUE = """#!/usr/bin/env bash
cat "${0%/*}/../queue" || { echo "Invalid job id specified" >&2; exit 1; }
"""
SBATCH = """#!/usr/bin/env bash
echo "4242;west"
"""


def miniature(folder: Path) -> dict[str, str]:
    """Put the commands into `folder`/bin; return the environment of a job there."""
    (folder / "bin").mkdir()
    commands = {"srun": SRUN, "scontrol": SCONTROL, "squeue": SQUEUE, "sbatch": SBATCH}
    for name, text in commands.items():
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return os.environ | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NODELIST": "here", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
    }  # fmt: skip
