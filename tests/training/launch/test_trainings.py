"""Two launched processes train what one trains: stopped and killed in the middle, too."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from highrank_plugins.common.stop_request import REQUEUE
from tests.free_port import free_port
from tests.training.launch.trainings import UPDATES, command, one_process
from tests.trainings import last, parameters, same

HIGHRANK = Path(sys.executable).parent / "highrank"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("launched"),
]


@pytest.fixture(scope="module")
def unbroken(mt_data, tmp_path_factory):
    return parameters(last(one_process(mt_data, tmp_path_factory.mktemp("one"))))


def start(
    data: Path, save_dir: Path, *options: object, updates: int = UPDATES
) -> subprocess.Popen[str]:
    words = [HIGHRANK, "launch", *options, "--", *command(data, save_dir, updates)]
    return subprocess.Popen(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # more threads sum in another order
    )  # fmt: skip


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    output = process.communicate()[0]
    assert process.returncode == code, output[-4000:]
    return output


def wait_for_update(log: Path, number: int, *processes: subprocess.Popen[str]) -> None:
    while not (log.exists() and f"num_updates={number}," in log.read_text()):
        assert all(p.poll() is None for p in processes), processes[0].communicate()[0][-4000:]
        time.sleep(0.05)


def process_of(rank: int, save_dir: Path, variable: str = "RANK") -> int:
    """Return the process that trains as this rank, which is in a variable of its environment."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environ.read_bytes().split(b"\0")
            words = environ.with_name("cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or is another user's
        if f"{variable}={rank}".encode() in variables and str(save_dir).encode() in words:
            return int(environ.parent.name)
    raise AssertionError(f"rank {rank} does not run")


def test_a_stopped_run_saves_and_resumes_with_the_same_result(mt_data, unbroken, tmp_path):
    first = start(mt_data, tmp_path / "two", "--processes", 2)
    wait_for_update(tmp_path / "two" / "logs" / "rank0.log", 5, first)
    began = time.monotonic()
    first.send_signal(signal.SIGTERM)
    output = finish(first, REQUEUE)
    assert time.monotonic() - began < 60
    assert "start it again" in output
    stopped = parameters(last(tmp_path / "two"))
    assert not same(stopped, unbroken)
    output = finish(start(mt_data, tmp_path / "two", "--processes", 2))
    assert "training on 2 devices" in output
    assert "Loaded checkpoint" in output
    assert same(parameters(last(tmp_path / "two")), unbroken)
    assert (tmp_path / "two" / "logs" / "rank1.log").read_text().count("+ fairseq-train") == 2


def test_two_nodes_resume_from_the_last_checkpoint_after_a_process_was_killed(
    mt_data, unbroken, tmp_path
):
    meeting = ["--nodes", 2, "--processes", 1, "--rendezvous", f"127.0.0.1:{free_port()}"]
    nodes = [start(mt_data, tmp_path / "two", *meeting) for _ in range(2)]
    wait_for_update(tmp_path / "two" / "logs" / "rank0.log", 7, *nodes)
    os.kill(process_of(1, tmp_path / "two"), signal.SIGKILL)
    outputs = [finish(node) for node in nodes]
    assert any("Loaded checkpoint" in output for output in outputs)
    assert any(f"num_updates={UPDATES}," in output for output in outputs)
    assert same(parameters(last(tmp_path / "two")), unbroken)


def test_a_failure_says_where_the_reason_is(mt_data, tmp_path):
    process = start(mt_data / "missing", tmp_path / "two", "--processes", 2)
    reason = finish(process, 2).splitlines()[-1]
    log = reason.partition("the reason is at the end of ")[2]
    assert Path(log).parent == tmp_path / "two" / "logs"
    assert "no such directory" in Path(log).read_text().splitlines()[-1]
