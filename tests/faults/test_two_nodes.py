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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.training.launch.trainings import command

# --stall-timeout, --rendezvous-timeout, and seconds beyond them within which all must end
STALL, MEETING, ALLOWED = 10, 30, 60
PORT = 29500
HOSTS = ["nodea", "nodeb"]
NODES = [f"hr{os.getpid()}{letter}" for letter in "ab"]  # also the names of the cable's ends
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def cable() -> Iterator[Callable[[str], None]]:
    """Join two nodes by a cable, and return a function that sets it up or down."""
    a, b = NODES
    try:
        for name in NODES:
            ip("netns", "add", name)
        ip("link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b)
        known = "".join(f"10.99.7.{n} {host}\n" for n, host in enumerate(HOSTS, 1))
        for number, name in enumerate(NODES, 1):
            ip("-n", name, "addr", "add", f"10.99.7.{number}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
            file = Path("/etc/netns", name, "hosts")
            file.parent.mkdir(parents=True)
            file.write_text(f"127.0.0.1 localhost\n{known}")
        yield lambda state: ip("-n", a, "link", "set", a, state)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        pytest.skip(f"no network namespaces here (root and iproute2 are needed): {reason}")
    finally:
        for name in NODES:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


@contextmanager
def training(
    data: Path, folder: Path, *more: str, restarts: int = 0
) -> Iterator[tuple[list[subprocess.Popen], list[Path]]]:
    """Train on both nodes; yield the launchers and their logs, and end what is left of them."""
    line = [
        sys.executable, "-m", "highrank_plugins.cli", "launch", "--nodes", "2",
        "--processes", "1", "--rendezvous", f"{HOSTS[0]}:{PORT}",
        "--stall-timeout", str(STALL), "--rendezvous-timeout", str(MEETING),
        "--max-restarts", str(restarts), "--",
        *command(data, folder / "save", 10**6), "--max-tokens", "40", *more,
    ]  # fmt: skip
    launchers, logs = [], [folder / f"launcher{number}.log" for number in range(2)]
    for name, host, log in zip(NODES, HOSTS, logs, strict=True):
        inner = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh", *line]
        with log.open("wb") as file:
            launchers.append(subprocess.Popen(
                ["ip", "netns", "exec", name, *inner], stdout=file, stderr=file,
                start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
            ))  # fmt: skip
    try:
        yield launchers, logs
    finally:
        for launcher in launchers:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
        print(*(f"{log.name}: {log.read_text().splitlines()[-3:]}" for log in logs))


def wait_for(updates: int, launchers: list[subprocess.Popen], logs: list[Path]) -> None:
    end = time.monotonic() + 120
    while f"num_updates={updates}," not in logs[0].read_text():
        running = [launcher.poll() is None for launcher in launchers]
        assert all(running) and time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("restarts", [0, 3])
def test_a_lost_network_ends_all_processes(cable, mt_data, tmp_path, restarts):
    with training(mt_data, tmp_path, restarts=restarts) as (launchers, logs):
        # within an epoch: at its beginning a process may be silent for ten minutes
        wait_for(60, launchers, logs)
        assert "all 2 processes have met (0: nodea cpu, 1: nodeb cpu)" in logs[0].read_text()
        cable("down")
        end = time.monotonic() + STALL + MEETING + ALLOWED
        codes = {launcher.wait(max(0.1, end - time.monotonic())) for launcher in launchers}
    assert not {0, 75} & codes
    for number, log in enumerate(logs):
        last = log.read_text().splitlines()[-1]
        assert f"rank {number} (process " in last and "or whose machine or network is lost" in last
    cable("up")
    more = ["--max-update", "90", "--allow-changed-options"]
    with training(mt_data, tmp_path, *more) as (launchers, logs):
        assert [launcher.wait(180) for launcher in launchers] == [0, 0]
    assert "Loaded checkpoint" in logs[0].read_text()
