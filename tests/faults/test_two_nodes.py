"""Train on two nodes that have a network between them, and lose it.

    pytest --run-long -s tests/faults/test_two_nodes.py

The nodes are network namespaces of this machine with host names of their own, joined by a virtual
cable. They meet by `highrank launch --nodes 2` as docs/howto/clusters.md says.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.launch.trainings import command

# --stall-timeout, --rendezvous-timeout, and seconds beyond them within which all must end
STALL, MEETING, ALLOWED = 10, 30, 60
PORT = 29500


class Nodes:
    """Make two nodes with a cable between them; `close` removes both."""

    def __init__(self) -> None:
        self.names = [f"highrank{os.getpid()}{letter}" for letter in "ab"]
        self.hosts = ["nodea", "nodeb"]
        self.files = [Path("/etc/netns", name) for name in self.names]
        self.cables = [f"hr{os.getpid()}{letter}" for letter in "ab"]
        a, b = self.names
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.cables[0], "netns", a, "type", "veth",
           "peer", "name", self.cables[1], "netns", b)  # fmt: skip
        known = "".join(f"10.99.7.{n} {host}\n" for n, host in enumerate(self.hosts, 1))
        for number, (name, cable, file) in enumerate(
            zip(self.names, self.cables, self.files, strict=True), 1
        ):
            ip("-n", name, "addr", "add", f"10.99.7.{number}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
            file.mkdir(parents=True)
            (file / "hosts").write_text(f"127.0.0.1 localhost\n{known}")

    def start(self, number: int, log: Path, *words: str) -> subprocess.Popen:
        inner = f'hostname {self.hosts[number]} && exec "$@"'
        line = ["ip", "netns", "exec", self.names[number], "unshare", "--uts", "sh", "-c", inner]
        with log.open("ab") as file:
            return subprocess.Popen(
                [*line, "sh", *words], stdout=file, stderr=file, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def cable(self, state: str) -> None:
        """Set the cable's first end up or down."""
        ip("-n", self.names[0], "link", "set", self.cables[0], state)

    def close(self) -> None:
        for name, file in zip(self.names, self.files, strict=True):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(file, ignore_errors=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def nodes():
    try:
        made = Nodes()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        pytest.skip(f"no network namespaces here (root and iproute2 are needed): {reason}")
    yield made
    made.close()


class Training:
    """Train on both nodes."""

    def __init__(
        self, nodes: Nodes, data: Path, folder: Path, *more: str, restarts: int = 0,
        stall: int = STALL,
    ) -> None:  # fmt: skip
        self.logs = [folder / f"launcher{number}.log" for number in range(2)]
        for log in self.logs:
            log.unlink(missing_ok=True)
        line = [
            sys.executable, "-m", "highrank_plugins.cli", "launch", "--nodes", "2",
            "--processes", "1", "--rendezvous", f"{nodes.hosts[0]}:{PORT}",
            "--stall-timeout", str(stall), "--rendezvous-timeout", str(MEETING),
            "--max-restarts", str(restarts), "--",
            *command(data, folder / "save", 10**6), "--max-tokens", "40", *more,
        ]  # fmt: skip
        self.launchers = [nodes.start(n, log, *line) for n, log in enumerate(self.logs)]

    def wait_for(self, text: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while text not in self.logs[0].read_text():
            running = [launcher.poll() is None for launcher in self.launchers]
            assert all(running) and time.monotonic() < end, self.output()
            time.sleep(0.1)

    def wait(self, seconds: float) -> list[int]:
        end = time.monotonic() + seconds
        return [launcher.wait(max(0.1, end - time.monotonic())) for launcher in self.launchers]

    def output(self) -> str:
        return "\n".join(log.read_text() for log in self.logs)

    def kill(self) -> None:
        for launcher in self.launchers:
            try:
                os.killpg(launcher.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            launcher.wait()


pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_lost_network_ends_all_processes(nodes, mt_data, tmp_path, restarts):
    training = Training(nodes, mt_data, tmp_path, restarts=restarts)
    try:
        # within an epoch: at its beginning a process may be silent for ten minutes
        training.wait_for("num_updates=60,")
        assert "all 2 processes have met (0: nodea cpu, 1: nodeb cpu)" in training.output()
        nodes.cable("down")
        codes = training.wait(STALL + MEETING + ALLOWED)
    finally:
        training.kill()
        print(*(f"{log.name}: {log.read_text().splitlines()[-3:]}" for log in training.logs))
    assert not {0, 75} & set(codes)
    for number, log in enumerate(training.logs):
        last = log.read_text().splitlines()[-1]
        assert f"rank {number} (process " in last and "or whose machine or network is lost" in last
    nodes.cable("up")
    resumed = Training(nodes, mt_data, tmp_path, "--max-update", "90", "--allow-changed-options")
    try:
        assert resumed.wait(180) == [0, 0], resumed.output()
    finally:
        resumed.kill()
    assert "Loaded checkpoint" in resumed.output()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_launcher_is_named(nodes, mt_data, tmp_path, lost):
    training = Training(nodes, mt_data, tmp_path, restarts=3, stall=60)
    left, log = training.launchers[1 - lost], training.logs[1 - lost]
    try:
        training.wait_for("num_updates=40,")
        os.killpg(training.launchers[lost].pid, signal.SIGKILL)
        assert left.wait(MEETING + ALLOWED) == 1
    finally:
        training.kill()
    assert "the nodes cannot meet; a launcher, its machine or the network" in log.read_text()
    assert "start the same command again" in log.read_text().splitlines()[-1]
