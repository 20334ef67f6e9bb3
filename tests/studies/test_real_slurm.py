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
    assert "array.sh: job " in submit(slurm_cluster, file, "--jobs", 2)
    wait(slurm_cluster)
    logs = list((folder_of(file) / "logs").glob("slurm-*.log"))
    assert len(logs) == 6 and sum("mos-2: diverged" in log.read_text() for log in logs) == 1
    submit(slurm_cluster, file)  # the member that failed, and no other
    wait(slurm_cluster)
    assert sorted(starts(file).values()) == [1, 1, 1, 1, 1, 2]
    assert run_study(file, "--table").returncode == 1
    assert table_of(file) == table_of(alone)


def test_a_task_that_is_warned_of_its_time_limit_is_requeued_alone(slurm_cluster, tmp_path):
    members = {name: {"conf": name} for name in ("softmax", "mos")}
    alone = write_stub(tmp_path / "alone", seeds=[1], members=members)
    assert run_study(alone).returncode == 0
    file = write_stub(tmp_path / "array", seeds=[1], members=members, options={"pause": 5})
    job = submit(slurm_cluster, file).split()[-1]
    wait_for_starts(file, 2)
    # the last task has the number of the whole array; SLURM sends it what --signal=B:USR1 says
    slurm_cluster.run("scancel", "--batch", "--signal=USR1", f"{job}_1")
    slurm_cluster.wait_for(f"{job}_1", "PENDING")
    assert slurm_cluster.state(f"{job}_0") in ("RUNNING", "COMPLETED")
    slurm_cluster.start_soon(f"{job}_1")
    wait(slurm_cluster)
    logs = [(folder_of(file) / "logs" / f"slurm-{job}_{n}.log").read_text() for n in (0, 1)]
    assert ["stopped, and the job is queued again" in log for log in logs] == [False, True]
    assert sorted(starts(file).values()) == [1, 2]
    assert run_study(file, "--table").returncode == 0
    assert table_of(file) == table_of(alone)


def test_a_task_that_crashes_or_is_cancelled_is_not_requeued(slurm_cluster, tmp_path):
    members = {name: {"conf": name} for name in ("softmax", "mos")}
    file = write_stub(tmp_path, seeds=[1], members=members, options={"pause": 30})
    job = submit(slurm_cluster, file).split()[-1]
    wait_for_starts(file, 2)
    slurm_cluster.run("scancel", f"{job}_1")
    slurm_cluster.wait_for(f"{job}_1", "CANCELLED")
    assert slurm_cluster.state(f"{job}_0") == "RUNNING"
    subprocess.run(["pkill", "-KILL", "-f", f"{file} .*--only softmax-1"], check=True)
    slurm_cluster.wait_for(f"{job}_0", "FAILED")
    wait(slurm_cluster)


def submit(cluster, file, *words):
    done = subprocess.run(
        study_command(file, "--slurm", *words), env=cluster.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for_starts(file, number, seconds=60):
    end = time.monotonic() + seconds
    while len(starts(file)) < number:
        assert time.monotonic() < end
        time.sleep(0.1)


def wait(cluster, seconds=120):
    end = time.monotonic() + seconds
    while queue := cluster.run("squeue", "--noheader").strip():
        assert time.monotonic() < end, queue
        time.sleep(0.2)
