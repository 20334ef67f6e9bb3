"""A process that makes no progress ends itself, and its launcher learns which rank is the cause."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from highrank_plugins.common import heartbeat
from highrank_plugins.common.user_error import UserError

RANK = """
import os, sys, time
from highrank_plugins.common.heartbeat import beat, guard
rank, beats = map(int, sys.argv[1:])
guard(rank)
for update in range(beats):
    beat("training", update)
print("ready", flush=True)
def stuck():
    time.sleep(60)
for _ in range(int(os.environ.get("BEATS", 0))):
    time.sleep(0.1)
    beat()
if "BEATS" not in os.environ:
    stuck()
"""


@pytest.fixture
def rank(tmp_path):
    """Start a rank that hangs after some beats, with a time limit of a second."""
    started = []

    def start(number, beats, **variables):
        ours = {"HIGHRANK_STALL_TIMEOUT": "1", "HIGHRANK_STOP_DIRECTORY": str(tmp_path)}
        variables = ours | (variables or {"HIGHRANK_LAUNCHED": "1"}) | {"RANK": str(number)}
        started.append(subprocess.Popen(
            [sys.executable, "-c", RANK, str(number), str(beats)], env=os.environ | variables,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_hangs_aborts_with_its_line_and_stacks(rank, tmp_path):
    alone = rank(3, 6, HIGHRANK_STALL_TIMEOUT="1")  # no launcher: under SLURM or torchrun
    said = alone.communicate(timeout=30)[1]
    line = rf"^rank 3 \(process {alone.pid}\) has made no progress for 2 s, training after update 5"
    assert alone.returncode == -signal.SIGABRT and "in stuck" in said
    assert re.search(f"{line}: it hangs, or waits for another rank that does, or whose", said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stopped", [False, True])
def test_the_rank_that_is_behind_or_that_a_signal_has_stopped_is_the_cause(rank, tmp_path, stopped):
    ranks = [rank(0, 0 if stopped else 9), rank(1, 8), rank(2, 9)]
    if stopped:  # found even in a slow phase
        ranks[1].send_signal(signal.SIGSTOP)
    others = [ranks[0], ranks[2]] if stopped else ranks
    assert [one.wait(30) for one in others] == [-signal.SIGABRT] * len(others)
    said, second = heartbeat.stall(tmp_path), f"rank 1 (process {ranks[1].pid})"
    assert said.startswith(f"{second} has made no prog") != stopped
    assert said.endswith(f": a signal has stopped {second} (SIGSTOP or SIGTSTP)") == stopped
    assert ("starting after update 0" in said) == stopped


def test_time_in_which_a_process_is_suspended_does_not_count(rank):
    process = rank(0, 1, HIGHRANK_STALL_TIMEOUT="2", BEATS="40")
    process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    process.send_signal(signal.SIGCONT)
    assert process.wait(30) == 0


@pytest.mark.parametrize("phase", heartbeat.SLOW_PHASES)
def test_a_slow_phase_lasts_until_the_next_update(monkeypatch, phase):
    """Others may wait there for the rank that writes a checkpoint."""
    monkeypatch.setattr(heartbeat.threading.Thread, "start", lambda thread: None)
    guard = heartbeat._Guard(1, 60)
    guard.beat("training", 7)
    assert guard._own_reason(60) == "" != guard._own_reason(61)
    for now in (phase, "training", None):
        guard.beat(now, None)
    assert guard._own_reason(600) == "" != guard._own_reason(601)
    guard.beat("training", 8)
    assert guard._own_reason(61)


def test_a_process_is_watched_once_unless_the_limit_is_0(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(heartbeat, "_Guard", lambda *given: started.append(given) or "a guard")
    monkeypatch.setattr(heartbeat, "_guard", None)
    monkeypatch.setattr(heartbeat.faulthandler, "enable", lambda file: None)
    for name, value in {"STOP_DIRECTORY": tmp_path, "LAUNCHED": 1, "STALL_TIMEOUT": 0}.items():
        monkeypatch.setenv(f"HIGHRANK_{name}", str(value))
    for number in (1, 11):
        (tmp_path / f"stall-000000000007-{number}").write_text("before a restart")
    heartbeat.guard(1)
    assert started == []
    for wrong in ("10m", "nan", ""):
        monkeypatch.setenv(heartbeat.TIMEOUT, wrong)
        with pytest.raises(UserError, match=f"HIGHRANK_STALL_TIMEOUT={wrong}: expected a number"):
            heartbeat.guard(1)
    monkeypatch.setenv(heartbeat.TIMEOUT, "1e4")
    heartbeat.guard(1)
    monkeypatch.setattr(heartbeat, "_guard", None)
    monkeypatch.delenv(heartbeat.TIMEOUT)
    heartbeat.guard(1)
    heartbeat.guard(1)
    assert started == [(1, 1e4), (1, 600.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["stall-000000000007-11"]
