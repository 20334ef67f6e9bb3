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

    def __init__(
        self, cluster: Cluster, data: Path, folder: Path, updates: int, *options: str
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.cluster, self.save_dir = cluster, folder / "save"
        self.words = [
            HIGHRANK, "launch", "--nodes", 2, "--processes", 1, "--slurm", folder / "job.sh",
            "--submit", *options, "--", *command(data, self.save_dir, updates),
        ]  # fmt: skip
        self.logs = self.save_dir / "logs"
        submitted = self.again()
        assert submitted.returncode == 0, submitted.stderr
        self.job = (self.logs / "job").read_text().strip()

    def again(self) -> subprocess.CompletedProcess[str]:
        """Give the same command again."""
        return subprocess.run(
            [str(word) for word in self.words], env=self.cluster.env, capture_output=True, text=True
        )

    @property
    def log(self) -> str:
        path = self.logs / f"slurm-{self.job}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_update(self, number: int, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while f"num_updates={number}," not in self.log:
            assert time.monotonic() < end, self.log[-4000:]
            time.sleep(0.05)


def test_a_requeued_job_ends_like_an_uninterrupted_one(slurm_cluster, mt_data, tmp_path):
    # a path with characters that mean something to bash or SLURM
    run = Launched(slurm_cluster, mt_data, tmp_path / "it's 5 %j", UPDATES)
    run.wait_for_update(5)
    again = run.again()
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


def test_a_cancelled_job_saves_and_is_not_requeued(slurm_cluster, mt_data, tmp_path):
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY)
    run.wait_for_update(5)
    slurm_cluster.run("scancel", run.job)
    slurm_cluster.wait_for(run.job, "CANCELLED")
    assert "if you cancelled it, submit it to resume" in run.log
    assert last(run.save_dir).exists()
    assert not (run.logs / "finished").exists()


def test_a_preempted_job_saves_and_is_requeued(slurm_cluster, mt_data, tmp_path):
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY)
    run.wait_for_update(5)
    urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--parsable", "--output=/dev/null"]
    other = slurm_cluster.run("sbatch", *urgent, "--wrap=true").strip()
    slurm_cluster.wait_for(run.job, "PENDING")
    slurm_cluster.wait_for(other, "COMPLETED")
    assert "stopping after update" in run.log and last(run.save_dir).exists()
    slurm_cluster.run("scancel", run.job)


def test_a_job_saves_before_its_time_limit_and_is_requeued(slurm_cluster, mt_data, tmp_path):
    # SLURM counts in minutes, and may send the signal up to one earlier
    options = ["--sbatch=--time=2", "--grace", "30"]
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY, *options)
    run.wait_for_update(5)
    slurm_cluster.wait_for(run.job, "PENDING", seconds=150)
    assert "stopped, and the job is queued again" in run.log
    assert last(run.save_dir).exists()
    slurm_cluster.run("scancel", run.job)


def test_the_batch_shell_passes_a_signal_on(slurm_cluster, mt_data, tmp_path):
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY, "--sbatch=--no-requeue")
    run.wait_for_update(5)
    slurm_cluster.run("scancel", "--batch", "--signal=USR1", run.job)
    slurm_cluster.wait_for(run.job, "FAILED")
    assert "stopping after update" in run.log and last(run.save_dir).exists()
    assert "SLURM does not queue the job again; submit it to resume" in run.log


def test_a_lost_process_ends_the_job_which_is_not_requeued(slurm_cluster, mt_data, tmp_path):
    run = Launched(slurm_cluster, mt_data, tmp_path, MANY)
    run.wait_for_update(5)
    os.kill(process_of(1, run.save_dir, "SLURM_PROCID"), signal.SIGKILL)
    slurm_cluster.wait_for(run.job, "FAILED", seconds=60)
    assert not (run.logs / "finished").exists()
