"""The batch script: both layouts, and a whole life of a job with SLURM's commands in miniature."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from highrank_plugins._stop_request import REQUEUE
from highrank_plugins.experiments.launch.plan import Plan
from highrank_plugins.experiments.launch.slurm import Job, sbatch_script
from tests.experiments.launch.trainings import UPDATES, command, one_process
from tests.trainings import last, parameters, same

PLAN = Plan(("fairseq-train", "a b", "--lr", "1"), Path("logs"), nodes=4, per_node=8)

# starts every task, hands SIGUSR1 to each as slurmstepd does, and returns the highest exit code
SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
tasks = [
    subprocess.Popen(words, env=os.environ | {{"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)}})
    for n in range(int(os.environ["SLURM_NTASKS"]))
]
signal.signal(signal.SIGUSR1, lambda *_: [task.send_signal(signal.SIGUSR1) for task in tasks])
open("srun.pid", "w").write(str(os.getpid()))
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """#!/usr/bin/env bash
if [[ $1 == show ]]; then echo 127.0.0.1; else echo "$*" >>scontrol.log; fi
"""


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line]


def test_a_task_for_each_gpu_with_one_gpu_each():
    script = sbatch_script(PLAN, Job("en_de", directives=("--partition=gpu",)))
    assert directives(script) == [
        "--job-name=en_de", "--nodes=4", "--ntasks-per-node=8", "--gpus-per-task=1",
        "--output=logs/slurm-%j.log", "--open-mode=append", "--requeue", "--signal=USR1@180",
        "--partition=gpu",
    ]  # fmt: skip
    assert "srun --kill-on-bad-exit=1 --gpus-per-task=1 \\\n" in script
    assert "--world-size 32 \\\n" in script
    assert "-- fairseq-train 'a b' \\\n    --lr 1\n" in script


def test_a_task_for_each_gpu_that_sees_all_of_its_node():
    script = sbatch_script(PLAN, Job(one_gpu_each=False, grace=60))
    assert {"--gpus-per-node=8", "--signal=USR1@60"} <= set(directives(script))
    assert "srun --kill-on-bad-exit=1 --gpu-bind=none --gpus-per-node=8 \\\n" in script


@pytest.mark.parametrize("one_gpu_each", [True, False])
def test_the_script_is_clean(one_gpu_each, tmp_path):
    (tmp_path / "job.sh").write_text(sbatch_script(PLAN, Job(one_gpu_each=one_gpu_each)))
    checked = subprocess.run(
        ["shellcheck", tmp_path / "job.sh"], capture_output=True, text=True,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert checked.stdout == ""
    assert checked.returncode == 0


@pytest.fixture
def slurm(tmp_path):
    """A folder for a job, and the environment that SLURM gives it."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path, os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "4242",
        "SLURM_JOB_NODELIST": "here", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_whose_time_is_over_is_queued_again_and_ends_as_if_it_had_not_been(slurm, mt_data):
    folder, env = slurm
    words = command(mt_data, folder / "save")
    plan = Plan(tuple(words), folder / "logs", per_node=2, gpus=False)
    (folder / "job.sh").write_text(sbatch_script(plan, Job()))
    with (folder / "out").open("w") as out:
        job = subprocess.Popen(["bash", "job.sh"], cwd=folder, env=env, stdout=out, stderr=out)
        log = folder / "logs" / "rank0.log"
        while job.poll() is None and not (log.exists() and "num_updates=5," in log.read_text()):
            time.sleep(0.05)
        os.kill(int((folder / "srun.pid").read_text()), 10)
        assert job.wait() == REQUEUE, (folder / "out").read_text()[-3000:]
    assert (folder / "scontrol.log").read_text() == "requeue 4242\n"
    subprocess.run(["bash", "job.sh"], cwd=folder, env=env, check=True, capture_output=True)
    assert f"num_updates={UPDATES}," in log.read_text()
    assert same(parameters(last(folder / "save")), parameters(last(one_process(mt_data, folder))))
