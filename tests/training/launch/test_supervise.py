"""The processes of one machine: their end, restarts, stop requests and logs."""

import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from highrank_plugins.common.folders import log_folder
from highrank_plugins.common.processes import python
from highrank_plugins.common.stop_request import REQUEUE, handlers_restored
from highrank_plugins.common.user_error import UserError
from highrank_plugins.training.launch import supervise
from highrank_plugins.training.launch.plan import Plan
from highrank_plugins.training.launch.rank import write_to_log
from highrank_plugins.training.launch.supervise import LocalRanks
from tests.cli import refused
from tests.held_lock import held_elsewhere

HIGHRANK = Path(sys.executable).parent / "highrank"
NOWHERE = "192.0.2.1:29500"  # RFC 5737: no machine has that address


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_launcher_that_waits_for_a_node_can_be_stopped(number, tmp_path):
    words = ["launch", "--nodes", "2", "--processes", "1", "--rendezvous", NOWHERE]
    words += ["--log-dir", str(tmp_path / "logs"), "--", "fairseq-train", str(tmp_path)]
    waiting = subprocess.Popen([HIGHRANK, *words], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "logs").exists():  # made just before it waits
        assert waiting.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    waiting.send_signal(number)
    _, said = waiting.communicate(timeout=30)
    assert waiting.returncode == REQUEUE and "stopped before it began" in said


@pytest.fixture
def restored():
    """Restore the signal handlers, which the supervisor takes for the whole process."""
    with handlers_restored():
        yield


KILLED = 128 + signal.SIGKILL
DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(99)"
BEGINS = "(folder / 'started').touch(); time.sleep(2)"
# torchrun waits for a store on a machine that is lost; a restart removes the note
OUTLIVES = """
(folder / "started").touch()
(folder / "stall-7-0").write_text("rank 0 has made no progress")
time.sleep(2)
(folder / "stall-7-0").unlink()
time.sleep(3)
(folder / "stall-7-0").write_text("rank 0 has made no progress")
time.sleep(99)
"""


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(
    ("code", "ended", "least", "most"),
    [(DEAF, KILLED, 0, 30), (BEGINS, 0, 2, 30), (OUTLIVES, KILLED, 8, 40)],
    ids=["never starts", "has started", "outlives its stalled ranks"],
)
def test_an_agent_that_outlives_its_stalled_ranks_is_killed(
    tmp_path, monkeypatch, code, ended, least, most
):
    monkeypatch.setattr(supervise, "ENDING_SECONDS", 1)
    code = f"import pathlib, signal, time\nfolder = pathlib.Path({str(tmp_path)!r})\n{code}"
    began = time.monotonic()
    start = partial(subprocess.Popen, [sys.executable, "-c", code])
    assert supervise._Supervisor(tmp_path).run(start, 1, again=4) == ended
    assert least < time.monotonic() - began < most


@pytest.mark.usefixtures("restored")
def test_one_machine_uses_no_port_and_a_full_disk_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(supervise._Supervisor, "run", lambda *given: 0)
    plan = Plan(("fairseq-train", "data"), tmp_path / "logs", gpus=False, rendezvous=NOWHERE)
    assert supervise.launch(plan, print) == 0
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Namespace(free=10**8))
    with pytest.raises(UserError, match=f"1.0 GB are needed on .* {tmp_path}/logs, 100.0 MB are"):
        supervise.launch(plan, print)


def test_a_link_in_place_of_a_log_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank1.log").symlink_to(tmp_path / "victim")
    words = ["--processes", "2", "--log-dir", tmp_path / "logs", "--", "fairseq-train"]
    refused("rank1.log is a symbolic link", "launch", *words)
    with pytest.raises(UserError, match=r"rank1.log is a symbolic link"):  # under SLURM
        write_to_log(tmp_path / "logs", 1)
    assert not (tmp_path / "victim").exists()


def launched(folder: Path, nodes: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """Hold the folder of a launcher's logs, on one node or two."""
    return held_elsewhere(folder, f"log_folder(path / 'logs', path / 'a', {nodes == 2})")


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (2, 1)])
def test_two_launches_at_once_share_no_logs(tmp_path, first, second):
    logs, words = tmp_path / "logs", ("fairseq-train", "--save-dir", str(tmp_path / "a"))
    plan = Plan(words, logs, second, gpus=False, rendezvous=NOWHERE)
    with launched(tmp_path, first) as process:
        (logs / "finished").touch()
        message = rf"--log-dir {logs} is in use by another highrank launch \(process {process.pid}"
        with pytest.raises(UserError, match=message):
            supervise.launch(plan, print)
    assert {path.name for path in logs.iterdir()} == {"finished", "launch.lock"}


def test_only_the_nodes_of_a_training_run_share_logs_also_where_it_has_moved(tmp_path):
    logs, other = tmp_path / "logs", r"another training run, whose --save-dir is .*/{}: choose"
    apart = pytest.raises(UserError, match=other.format("a"))
    with launched(tmp_path, 2), launched(tmp_path, 2), apart, log_folder(logs, tmp_path, True):
        raise AssertionError
    # what two nodes have written at once
    (logs / "launch.lock").write_text("process 1 on a\n..\nprocess 2 on b\n..\n")
    with log_folder(logs, tmp_path, is_shared=True):
        pass
    logs = tmp_path / "old" / "logs"
    with log_folder(logs, tmp_path / "old", is_shared=False):
        pass
    with pytest.raises(UserError, match=other.format("old")), log_folder(logs, tmp_path, False):
        raise AssertionError
    (tmp_path / "old").rename(tmp_path / "new")
    with log_folder(tmp_path / "new" / "logs", tmp_path / "new", is_shared=False):
        pass


BEGIN = """
import os, signal, sys, time
rank, start = os.environ["RANK"], int(sys.argv[1])
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start ranks that run lines of Python, which know their `rank` and how many `start`s were."""
    said = []

    def start_ranks(code: str, restarts: int = 0) -> LocalRanks:
        (tmp_path / "a_rank.py").write_text(BEGIN + code)
        monkeypatch.setattr(
            supervise, "rank_words", lambda plan, to: python("-m", "a_rank", to[-1])
        )
        plan = Plan(("fairseq-train",), tmp_path, 1, 2, gpus=False, max_restarts=restarts)
        return LocalRanks(plan, tmp_path, os.environ | {"PYTHONPATH": str(tmp_path)}, said.append)

    start_ranks.said = said
    return start_ranks


def end_of(ranks: LocalRanks) -> int:
    """Wait for the end of all ranks, and return their exit code."""
    end = time.monotonic() + 60
    while (code := ranks.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    return code


FAILED = "rank 1 failed with exit code {} (see rank1.log); ending the other processes"


def test_the_first_failure_ends_the_others_and_restarts_them(start, monkeypatch):
    monkeypatch.setattr(supervise, "LAST_WORDS_SECONDS", 0.5)
    began = time.monotonic()
    ranks = start("time.sleep(99) if rank == '0' else sys.exit(7)")
    assert end_of(ranks) == 7 and start.said == [FAILED.format(7)]
    assert all(process.poll() is not None for process in ranks._ranks)
    for other, ended in ((2, 2), (1, -signal.SIGABRT)):  # the abort is, and is not, its result
        start.said.clear()
        ranks = start(f"os.abort() if rank == '0' else sys.exit({other})")
        for process in ranks._ranks:
            process.wait(30)
        assert ranks.poll() == ended
    start.said.clear()
    # each start has a new file where the ranks meet, and its number
    assert end_of(start("sys.exit(start < 2 and int(rank))", restarts=3)) == 0
    again = [line for n in (1, 2) for line in (FAILED.format(1), f"starting again ({n} of 3)")]
    assert start.said == again
    assert time.monotonic() - began < 40
    start.said.clear()
    ranks = start("time.sleep(99)", restarts=3)
    time.sleep(0.5)
    assert ranks.poll() is None
    ranks.send_signal(signal.SIGINT)  # nothing restarts after a signal
    assert end_of(ranks) and not any("again" in line for line in start.said)
    ranks = start("time.sleep(2)")
    ranks.send_signal(signal.SIGTERM)  # a stop request, to which nobody listens yet
    assert end_of(ranks) == 0
