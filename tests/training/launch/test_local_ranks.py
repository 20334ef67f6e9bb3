"""The processes of one machine: their end, their restarts, and what others can reach of them."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from highrank_plugins.common.processes import python
from highrank_plugins.training.launch import supervise
from highrank_plugins.training.launch.plan import Plan
from highrank_plugins.training.launch.supervise import LocalRanks

HIGHRANK = Path(sys.executable).parent / "highrank"


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


def test_processes_that_succeed_end_silently(start):
    assert start("pass").wait(20) == 0
    assert start.said == []


def test_the_first_failure_ends_the_others_and_is_named(start, monkeypatch):
    monkeypatch.setattr(supervise, "LAST_WORDS_SECONDS", 0.5)
    began = time.monotonic()
    ranks = start("time.sleep(99) if rank == '0' else sys.exit(7)")
    assert ranks.wait(60) == 7
    assert start.said == ["rank 1 failed with exit code 7; ending the other processes"]
    assert time.monotonic() - began < 20
    assert all(process.poll() is not None for process in ranks._ranks)


def test_a_killed_rank_is_named_with_its_signal(start, monkeypatch):
    monkeypatch.setattr(supervise, "LAST_WORDS_SECONDS", 0.5)
    assert start("os.kill(os.getpid(), 9) if rank == '0' else time.sleep(99)").wait(60) == -9
    assert "rank 0 was killed by signal 9 (SIGKILL): is the machine out of memory?" in start.said[0]


def test_restarts_meet_in_a_new_file(start):
    assert start("sys.exit(start < 2 and int(rank))", restarts=3).wait(60) == 0
    assert [line for line in start.said if "again" in line] == [
        "starting again (1 of 3)", "starting again (2 of 3)",
    ]  # fmt: skip


def test_processes_do_not_restart_after_a_signal(start):
    ranks = start("time.sleep(99)", restarts=3)
    time.sleep(0.5)
    ranks.send_signal(signal.SIGINT)
    assert ranks.wait(60)
    assert not any("again" in line for line in start.said)


def test_waiting_ends_at_a_time_limit(start):
    ranks = start("time.sleep(99)")
    with pytest.raises(subprocess.TimeoutExpired):
        ranks.wait(0.3)
    ranks.send_signal(signal.SIGKILL)
    assert ranks.wait(20) == -signal.SIGKILL


def test_a_stop_request_does_not_end_a_process_that_is_not_listening_yet(start):
    ranks = start("time.sleep(2)")
    ranks.send_signal(signal.SIGTERM)
    assert ranks.wait(20) == 0


def sockets_of(processes: list[int]) -> list[str]:
    """Return local addresses where a process listens, in the kernel's hexadecimal form."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


def test_a_run_on_one_machine_is_not_reachable_from_outside(mt_data, tmp_path):
    from tests.training.launch.trainings import command

    words = command(mt_data, tmp_path / "two")
    words[words.index("--max-update") + 1] = "100000"
    training = subprocess.Popen(
        [HIGHRANK, "launch", "--processes", "2", "--", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    log, folders = tmp_path / "two" / "logs" / "rank0.log", set()
    try:
        while not (log.exists() and "num_updates=2," in log.read_text()):
            assert training.poll() is None, log.read_text()[-3000:]
            time.sleep(0.1)
        children = Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()
        listening = sockets_of([training.pid, *map(int, children)])
        for child in children:
            for word in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                if word.startswith(b"file://"):
                    folders.add(Path(word.decode().removeprefix("file://")).parent)
        assert len(children) == 2
        assert all(address.startswith("0100007F:") for address in listening), listening
        assert [stat.S_IMODE(folder.stat().st_mode) for folder in folders] == [0o700]
    finally:
        training.send_signal(signal.SIGTERM)
        assert training.wait(60) == 75
    assert not any(folder.exists() for folder in folders)
