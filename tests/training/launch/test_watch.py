"""Which process hangs, and what is said of it."""

import signal
import subprocess
import sys
from typing import ClassVar

import pytest

from highrank_plugins.common import heartbeat
from highrank_plugins.common.heartbeat import Beat, read_beats
from highrank_plugins.training.launch import cause, watch
from highrank_plugins.training.launch.cause import Cause
from highrank_plugins.training.launch.watch import StallWatch


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Return a function that watches beats of processes in given states: the first stall."""
    now, states = [0.0], {}
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watch, "_state", lambda process: states.get(process, "S"))
    observer = StallWatch(tmp_path, timeout=60)

    def look(*beats: Beat, seconds: int = 62, state: dict[int, str] | None = None, step=1.0):
        states.update(state or {})
        for beat in beats:
            line = f"{beat.process} {beat.count} {beat.updates} {beat.phase}"
            (tmp_path / f"beat-{beat.rank}").write_text(f"{line:<80}\n")
        for _ in range(seconds):
            now[0] += step
            if found := observer.look():
                return found
        return None

    return look


def test_the_process_with_the_least_progress_is_named(look):
    found = look(Beat(0, 10, 41, 7, "training"), Beat(1, 11, 40, 7, "training"))
    assert found.beat.rank == 1 and found.is_behind and found.seconds == pytest.approx(61)
    assert found.describe() == (
        "rank 1 (process 11) has shown no sign of life for 61 s, training after update 7"
    )


def test_a_stopped_process_is_named_even_if_another_is_behind(look):
    beats = Beat(0, 10, 40, 7, "training"), Beat(1, 11, 41, 7, "saving")
    found = look(*beats, state={11: "T"})
    assert found.beat.rank == 1 and "a signal has stopped it" in found.describe()


def test_a_process_that_waits_for_a_disk_is_described_as_waiting(look):
    beats = Beat(0, 10, 41, 7, "training"), Beat(1, 11, 40, 7, "training")
    assert look(*beats, state={11: "D"}).describe().endswith("update 7 and waits for a disk")


def test_equal_progress_may_mean_waiting_for_another_node(look):
    found = look(*(Beat(rank, 10 + rank, 40, 7, "validating") for rank in (2, 3)))
    assert "all may be waiting for another node" in found.describe()


def test_no_process_hangs_while_one_shows_signs_of_life(look):
    for count in range(5):
        assert look(Beat(0, 10, 50 + count, 7), Beat(1, 11, 40, 7), seconds=30) is None


@pytest.mark.parametrize("phase", heartbeat.SLOW_PHASES)
def test_waiting_for_a_slow_phase_does_not_count_as_a_hang(look, phase):
    saving, waiting = Beat(0, 10, 40, 7, phase), Beat(1, 11, 41, 7, "training")
    assert look(saving, waiting, seconds=590) is None
    assert look(seconds=20).beat.rank == 0


def test_time_during_which_the_launcher_was_stopped_does_not_count(look):
    beats = Beat(0, 10, 40, 7, "training"), Beat(1, 11, 41, 7, "training")
    assert look(*beats, seconds=50, step=3600.0) is None


def test_a_line_that_is_being_written_is_left_for_later(tmp_path):
    (tmp_path / "beat-3").write_text("12 4")
    assert read_beats(tmp_path) == []


def run_alone(tmp_path, **environment):
    code = (
        "import time\nfrom highrank_plugins.common.heartbeat import beat, start\n"
        "start(3)\nbeat('training', 5)\ndef stuck(): time.sleep(20)\nstuck()"
    )
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)


def test_without_a_launcher_a_process_watches_itself(tmp_path):
    done = run_alone(tmp_path, HIGHRANK_STALL_TIMEOUT="1", HIGHRANK_STOP_DIRECTORY=str(tmp_path))
    assert done.returncode == 1
    assert "Timeout" in done.stderr and "in stuck" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_beats_are_read_back_as_written(tmp_path, monkeypatch):
    monkeypatch.setenv("HIGHRANK_STALL_TIMEOUT", "60")
    monkeypatch.setenv("HIGHRANK_LAUNCHED", "1")
    monkeypatch.setenv("HIGHRANK_STOP_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(heartbeat, "_pulse", None)
    monkeypatch.setattr(heartbeat.faulthandler, "enable", lambda file: None)
    monkeypatch.setattr(heartbeat.os, "getpid", lambda: 12)
    heartbeat.start(3)
    assert read_beats(tmp_path) == [Beat(3, 12, 1, 0, "starting")]
    heartbeat.beat("preparing an epoch", 12345)
    assert read_beats(tmp_path) == [Beat(3, 12, 2, 12345, "preparing an epoch")]
    heartbeat.beat("saving")
    heartbeat.beat()
    assert read_beats(tmp_path) == [Beat(3, 12, 4, 12345, "saving")]


def test_a_hang_stays_the_cause_after_the_launcher_kills_it(tmp_path):
    assert cause.read(tmp_path) is None
    stall = Cause(1, -6, "rank 1 hangs")
    cause.note(tmp_path, stall)
    cause.note(tmp_path, Cause(1, -9))
    assert cause.read(tmp_path) == stall
    assert "the stacks are at the end of logs/rank*.log" in stall.advise("logs")
    cause.note(tmp_path, Cause(0, 3))
    text = "rank 0 failed with exit code 3; the reason is at the end of logs/rank0.log"
    assert cause.read(tmp_path).advise("logs") == text
    cause.forget(tmp_path)
    assert cause.read(tmp_path) is None


class StuckAgent:
    """Run on after its processes have ended, as torchrun does whose store is on a lost node."""

    def __init__(self):
        self.signals = []

    def send_signal(self, number):
        self.signals.append(number)

    def wait(self, timeout):
        if self.signals:
            return -self.signals[0]
        raise subprocess.TimeoutExpired("agent", timeout)


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_agent_that_cannot_end_is_killed_when_no_restart_is_left(
    tmp_path, monkeypatch, restarts
):
    monkeypatch.setattr(watch, "AGENT_SECONDS", 0)
    ended, stalls = [], [watch.Stall(Beat(0, 10), 1, "S", True)] * (restarts + 1)
    agent = watch.WatchedAgent(StuckAgent(), tmp_path, 60, print, restarts)
    monkeypatch.setattr(agent, "_end", ended.append)
    monkeypatch.setattr(agent._watch, "look", lambda: stalls.pop() if stalls else None)
    assert agent.wait() == -signal.SIGKILL and len(ended) == restarts + 1


@pytest.mark.parametrize(
    ("answers", "is_killed"),
    [
        ([[], ["b"], ["b"]], True),
        ([[], ["b"], []], False),  # it is back before the agent is killed
        ([[], [], []], False),
        ([["b"], ["b"], ["b"]], False),  # a firewall: whether it is lost cannot be known
    ],
    ids=["lost", "back again", "there", "never answered"],
)
def test_a_lost_machine_prevents_a_restart(tmp_path, monkeypatch, answers, is_killed):
    monkeypatch.setattr(watch, "AGENT_SECONDS", 0)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(watch.peers, "is_noted", lambda folder: True)
    left = list(answers)
    monkeypatch.setattr(watch.peers, "silent", lambda folder: left.pop(0))
    stuck, stalls = StuckAgent(), [watch.Stall(Beat(0, 10), 1, "S", True)]
    agent = watch.WatchedAgent(stuck, tmp_path, 60, print, restarts=3)
    monkeypatch.setattr(agent, "_end", lambda stall: None)
    monkeypatch.setattr(agent._watch, "look", lambda: stalls.pop() if stalls else None)
    if is_killed:
        assert agent.wait() == -signal.SIGKILL
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            agent.wait(0.05)
        assert not stuck.signals


AGAIN = "They are restarted once all have met"


@pytest.mark.parametrize(
    ("meeting", "lost", "is_said"),
    [("", [], False), (AGAIN, [], True), (AGAIN, ["b"], False)],
    ids=["one machine", "all answer", "a machine is lost"],
)
def test_a_wait_for_other_launchers_is_announced_once(
    tmp_path, monkeypatch, meeting, lost, is_said
):
    now, alive, said = [0.0], {10: "S"}, []
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(watch, "_state", lambda process: alive.get(process, ""))
    monkeypatch.setattr(watch.peers, "is_noted", lambda folder: True)
    monkeypatch.setattr(watch.peers, "silent", lambda folder: lost if now[0] > 5 else [])
    path = tmp_path / "beat-0"

    class Waiting:
        """Stand for an agent that a scheduler restarts after 30 s."""

        signals: ClassVar[list[int]] = []

        def send_signal(self, number):
            self.signals.append(number)

        def wait(self, timeout=None):
            now[0] += 1
            if now[0] == 5:
                del alive[10]
            if now[0] == 35:
                alive[11] = "S"
                path.write_text(f"{'11 1 0 starting':<80}\n")
            if now[0] == 60:
                return 0
            raise subprocess.TimeoutExpired("agent", timeout)

    path.write_text(f"{'10 7 3 training':<80}\n")
    agent = watch.WatchedAgent(Waiting(), tmp_path, 100, said.append, 3, meeting)
    assert agent.wait() == 0
    assert said == ([f"all processes of this machine have ended. {meeting}"] if is_said else [])
    assert Waiting.signals == []
