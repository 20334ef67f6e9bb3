"""Jobs of two nodes under SLURM's own daemons: requeued, cancelled, out of time, and broken."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm_cluster import Cluster
from tests.training.launch.test_trainings import HIGHRANK, process_of
from tests.training.launch.trainings import UPDATES, command, one_process
from tests.trainings import last, parameters, same

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.xdist_group("slurm")]
MANY = 100_000


class Launched:
    """A training run of two nodes, submitted by `highrank launch`."""

    def __init__(self, cluster: Cluster, data: Path, folder: Path, updates: int, *options: str):
        folder.mkdir(exist_ok=True)
        self.cluster, self.save_dir = cluster, folder / "save"
        self.words = [
            HIGHRANK, "launch", "--nodes", 2, "--processes", 1, "--slurm", folder / "job.sh",
            "--submit", *options, "--", *command(data, self.save_dir, updates),
        ]  # fmt: skip
        self.logs = self.save_dir / "logs"
        submitted = self.submit()
        assert submitted.returncode == 0, submitted.stderr
        self.job = (self.logs / "job").read_text().strip()
        end = time.monotonic() + 120
        while "num_updates=5," not in self.log:
            assert time.monotonic() < end, self.log[-4000:]
            time.sleep(0.05)

    def submit(self) -> subprocess.CompletedProcess[str]:
        words = [str(word) for word in self.words]
        return subprocess.run(words, env=self.cluster.env, capture_output=True, text=True)

    @property
    def log(self) -> str:
        path = self.logs / f"slurm-{self.job}.log"
        return path.read_text() if path.exists() else ""


def test_a_requeued_job_ends_like_an_uninterrupted_one(slurm_cluster, mt_data, tmp_path):
    # a path with characters that mean something to bash or SLURM
    run = Launched(slurm_cluster, mt_data, tmp_path / "it's 5 %j", UPDATES)
    again = run.submit()
    assert again.returncode == 2
    assert f"job {run.job} of this run is still in the queue (RUNNING)" in again.stderr
    slurm_cluster.run("scancel", "--signal=USR1", run.job)
    slurm_cluster.wait_for(run.job, "PENDING")
    assert "stopped, and the job is queued again" in run.log
    assert not (run.logs / "finished").exists()
    slurm_cluster.start_soon(run.job)
    slurm_cluster.wait_for(run.job, "COMPLETED")
    assert f"job {run.job}, restart 1: 2 processes meet at 127.0.0.1:" in run.log
    assert "Loaded checkpoint" in run.log and f"num_updates={UPDATES}," in run.log
    assert (run.logs / "finished").exists()
    unbroken = last(one_process(mt_data, tmp_path))
    assert same(parameters(last(run.save_dir)), parameters(unbroken))


LIMIT = ["--sbatch=--time=2", "--grace", "30"]  # SLURM counts minutes, and may warn one earlier


@pytest.mark.parametrize(
    ("options", "cancel", "state", "said"),
    [
        ([], "", "CANCELLED", "if you cancelled it, submit it to resume"),
        (LIMIT, None, "PENDING", "stopped, and the job is queued again"),
        (["--sbatch=--no-requeue"], "--batch --signal=USR1", "FAILED",
         "SLURM does not queue the job again; submit it to resume"),
    ],
    ids=["cancelled", "out of time", "a signal to the batch shell"],
)  # fmt: skip
def test_a_stopped_job_saves(slurm_cluster, mt_data, tmp_path, options, cancel, state, said):
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY, *options)
    if cancel is not None:
        slurm_cluster.run("scancel", *cancel.split(), run.job)
    slurm_cluster.wait_for(run.job, state, seconds=150)
    assert said in run.log and last(run.save_dir).exists()
    assert not (run.logs / "finished").exists()
    if state == "PENDING":
        slurm_cluster.run("scancel", run.job)


def test_a_preempted_job_saves_and_is_requeued(slurm_cluster, mt_data, tmp_path):
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY)
    urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--parsable", "--output=/dev/null"]
    other = slurm_cluster.run("sbatch", *urgent, "--wrap=true").strip()
    slurm_cluster.wait_for(run.job, "PENDING")
    slurm_cluster.wait_for(other, "COMPLETED")
    assert "stopping after update" in run.log and last(run.save_dir).exists()
    slurm_cluster.run("scancel", run.job)


def test_a_lost_process_ends_the_job_which_is_not_requeued(slurm_cluster, mt_data, tmp_path):
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY)
    os.kill(process_of(1, run.save_dir, "SLURM_PROCID"), signal.SIGKILL)
    slurm_cluster.wait_for(run.job, "FAILED", seconds=60)
    assert not (run.logs / "finished").exists()
