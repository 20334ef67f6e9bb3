"""An array of a study's members under SLURM's own daemons."""

import subprocess
import time

import pytest

from tests.studies.stub import folder_of, run_study, starts, study_command, table_of, write_stub

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("slurm")]


def test_an_array_makes_the_table_of_one_machine(slurm_cluster, tmp_path):
    options = {"failing": "mos-2"}
    alone = write_stub(tmp_path / "alone", seeds=[1, 2], options=options)
    assert run_study(alone).returncode == 1
    file = write_stub(tmp_path / "array", seeds=[1, 2], options=options)
    assert "Submitted batch job" in submit(slurm_cluster, file, "--jobs", 2)
    wait(slurm_cluster)
    logs = list((folder_of(file) / "logs").glob("slurm-*.log"))
    assert len(logs) == 6 and sum("mos-2: diverged" in log.read_text() for log in logs) == 1
    submit(slurm_cluster, file)  # the member that failed, and no other
    wait(slurm_cluster)
    assert sorted(starts(file).values()) == [1, 1, 1, 1, 1, 2]
    assert run_study(file, "--table").returncode == 1
    assert table_of(file) == table_of(alone)


def test_a_task_that_is_warned_of_its_time_limit_is_requeued(slurm_cluster, tmp_path):
    members = {"softmax": {"conf": "softmax"}}
    alone = write_stub(tmp_path / "alone", seeds=[1], members=members)
    assert run_study(alone).returncode == 0
    slow = {"pause": 5}
    file = write_stub(tmp_path / "array", seeds=[1], members=members, options=slow)
    job = submit(slurm_cluster, file).split()[-1]
    end = time.monotonic() + 60
    while not starts(file):
        assert time.monotonic() < end
        time.sleep(0.1)
    # as --signal=B:USR1 of the array does
    slurm_cluster.run("scancel", "--batch", "--signal=USR1", job)
    slurm_cluster.wait_for(job, "PENDING")
    slurm_cluster.start_soon(job)
    wait(slurm_cluster)
    (log,) = (folder_of(file) / "logs").glob("slurm-*.log")
    assert "the job is queued again" in log.read_text()
    assert list(starts(file).values()) == [2]
    assert run_study(file, "--table").returncode == 0
    assert table_of(file) == table_of(alone)


def submit(cluster, file, *words):
    done = subprocess.run(
        study_command(file, "--slurm", *words), env=cluster.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait(cluster, seconds=120):
    end = time.monotonic() + seconds
    while queue := cluster.run("squeue", "--noheader").strip():
        assert time.monotonic() < end, queue
        time.sleep(0.2)
