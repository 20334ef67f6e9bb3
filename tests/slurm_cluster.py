"""A SLURM cluster of two nodes on this machine: SLURM's own daemons on the loopback interface."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.free_port import free_port

DAEMONS = ("munged", "slurmctld", "slurmd")
# processes meet at the first node, so that its name must resolve
NODES = ("127.0.0.1", "127.0.0.2")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=127.0.0.[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]},{ports[2]}] CPUs=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""


@dataclass(frozen=True)
class Cluster:
    """Ask the cluster by its own commands.

    Attributes:
        env: environment of SLURM's commands.
    """

    env: dict[str, str]

    def run(self, *words: object) -> str:
        """Return what a command of SLURM prints."""
        done = subprocess.run(
            [str(word) for word in words], env=self.env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING; a job that has ended is kept for minutes."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def wait_for(self, job: str, *states: str, seconds: float = 120) -> str:
        """Return the first of the states that a job reaches."""
        end = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            assert time.monotonic() < end, f"job {job} is {state} after {seconds} s"
            time.sleep(0.1)
        return state

    def start_soon(self, job: str) -> None:
        """Start a requeued job, which SLURM holds for two minutes; nodes refuse it at once."""
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+15")


def daemon(name: str) -> str | None:
    """Return the path of a daemon; users other than root have no sbin in their PATH."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start munged, slurmctld and two slurmd, and stop them and their jobs."""
    missing = [name for name in DAEMONS if daemon(name) is None]
    if missing:
        pytest.skip(f"needs SLURM's daemons ({', '.join(missing)}): apt-get install slurm-wlm")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    for node in NODES:
        (folder / f"spool.{node}").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname(), user=getpass.getuser(), folder=folder,
            ports=[free_port() for _ in range(3)],
        )
    )  # fmt: skip
    # SLURM's own variables would tell the commands here that they belong to a job
    outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    cluster = Cluster(outside | {"SLURM_CONF": str(configuration), "OMP_NUM_THREADS": "1"})
    commands = [
        [
            # --force: no other user has to reach the socket
            "munged", "--foreground", "--force",
            f"--key-file={key}", f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munge.pid",
            f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed",
        ],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", node] for node in NODES),
    ]  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    try:
        for n, (name, *options) in enumerate(commands):
            with (folder / f"{n}_{name}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        [str(daemon(name)), *options], env=cluster.env, stdout=log, stderr=log
                    )
                )
            if name == "munged":
                _wait_until(folder, lambda: (folder / "munge.socket").exists())
        _wait_until(folder, lambda: _idle(cluster) == len(NODES))
        yield cluster
        subprocess.run(["scancel", "--me"], env=cluster.env, capture_output=True, timeout=60)
        _wait_until(folder, lambda: not cluster.run("squeue", "--noheader").strip())
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(30)


def _idle(cluster: Cluster) -> int:
    asked = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--partition=cpu", "--format", "%t"], env=cluster.env,
        capture_output=True, text=True,
    )  # fmt: skip
    return asked.stdout.split().count("idle")


def _wait_until(folder: Path, holds: object, seconds: float = 30) -> None:
    assert callable(holds)
    end = time.monotonic() + seconds
    while not holds():
        logs = "\n".join(log.read_text()[-500:] for log in sorted(folder.glob("*.log")))
        assert time.monotonic() < end, f"not within {seconds} s: {logs}"
        time.sleep(0.1)
