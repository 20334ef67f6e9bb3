"""Start the processes of this machine, pass stop requests on, and report how they ended."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from highrank_plugins.common import peers, stop_request
from highrank_plugins.common.files import open_own
from highrank_plugins.common.folders import log_folder
from highrank_plugins.training.launch import cause
from highrank_plugins.training.launch.flags import save_dir
from highrank_plugins.training.launch.local_ranks import LocalRanks, prepare_child
from highrank_plugins.training.launch.plan import (
    STARTING_SECONDS,
    Plan,
    check_disk,
    check_gpus,
)
from highrank_plugins.training.launch.rendezvous import check_rendezvous
from highrank_plugins.training.launch.torchrun import environment, run_id, torchrun_words
from highrank_plugins.training.launch.watch import Agent, WatchedAgent

ENDING_SECONDS = 30  # seconds for torchrun to end after the time limit for nodes to meet


def launch(plan: Plan, say: Callable[[str], object]) -> int:
    """Train, and return the exit code: 0, a failure's, or `stop_request.REQUEUE` to start again."""
    with (
        stop_request.handlers_restored(),
        TemporaryDirectory(prefix="highrank-launch-") as folder,
    ):
        answers = Path(folder)
        supervisor = _Supervisor(answers)  # listens from here on, because nodes may arrive late
        plan.check_meeting()
        with log_folder(plan.log_dir, save_dir(plan.command), is_shared=plan.nodes > 1):
            _check(plan, say)
            plan.finished.unlink(missing_ok=True)
            code = supervisor.run(partial(_start_watched, plan, answers, say), _patience(plan))
            if code == 0:
                plan.finished.touch()
        if code == stop_request.REQUEUE:
            say(f"stopped; start it again to resume (exit code {code})")
        elif code:
            say(f"failed with exit code {code}: {_advice(plan, answers)}{_silent(answers)}")
    return code


def _check(plan: Plan, say: Callable[[str], object]) -> None:
    """Raise an error if the processes cannot run here, or cannot meet."""
    if plan.gpus:
        check_gpus(plan.per_node)
    check_disk(plan.log_dir)
    for log in plan.log_dir.glob("rank*.log"):
        open_own(log, "ab").close()  # the processes append to it
    if plan.rendezvous is not None:
        if plan.nodes == 1:
            say(f"--rendezvous {plan.rendezvous} is not used: one machine needs no port")
        else:
            check_rendezvous(plan.rendezvous, plan.timeout, run_id(plan))


def _patience(plan: Plan) -> float | None:
    return plan.timeout + STARTING_SECONDS if plan.nodes > 1 else None


def _start_watched(plan: Plan, folder: Path, say: Callable[[str], object]) -> Agent:
    agent = _start(plan, folder, say)
    if not plan.stall_timeout:
        return agent
    return WatchedAgent(
        agent, folder, plan.stall_timeout, say, plan.max_restarts, _meeting_again(plan)
    )


def _meeting_again(plan: Plan) -> str:
    """Return what torchrun waits for before it restarts processes that have failed, in words."""
    if plan.nodes == 1:
        return ""
    return (
        f"They are restarted once the launchers of all {plan.nodes} nodes have met again at "
        f"{plan.rendezvous}, for which torchrun waits up to {plan.timeout:.0f} s "
        "(--rendezvous-timeout). On a node whose launcher has ended, start the same command again; "
        "Ctrl-C here ends the wait"
    )


def _start(plan: Plan, folder: Path, say: Callable[[str], object]) -> Agent:
    """Start the processes of this machine, which answer stop requests by files in `folder`."""
    env = os.environ | environment(plan) | {stop_request.DIRECTORY: str(folder)}
    if plan.rendezvous is None or plan.nodes == 1:
        say(f"+ {shlex.join(plan.command)} as {plan.world_size} processes of this machine")
        return LocalRanks(plan, folder, env, say)
    words = torchrun_words(plan, plan.rendezvous)
    say(f"+ {shlex.join(words)}")
    env[stop_request.LAUNCHED] = str(os.getpid())
    return subprocess.Popen(words, env=env, preexec_fn=prepare_child)


def _advice(plan: Plan, answers: Path) -> str:
    known = cause.read(answers)
    if known is not None:
        return known.advise(plan.log_dir)
    if plan.nodes > 1 and not (answers / "started").exists():
        return (
            f"no process was started here: all {plan.nodes} nodes must reach "
            f"{plan.rendezvous} within {plan.timeout} s (--rendezvous-timeout), each with the "
            "same command"
        )
    return f"the reason is at the end of a file {plan.log_dir}/rank*.log"


def _silent(answers: Path) -> str:
    lost = peers.lost(answers)
    return f". No answer from {lost}: check that machine and the network" if lost else ""


class _Supervisor:
    """Pass stop requests on to the processes of this machine, and collect their answers."""

    def __init__(self, answers: Path) -> None:
        self.answers = answers
        self.asked_at: float | None = None
        self.agent: Agent | None = None
        stop_request.handle(self.ask)
        stop_request.handle_interrupt(lambda: self.asked_at)

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Ask all processes to stop; end them if none has begun, or at the second request.

        A request that reaches this process by several ways at once is one request.
        """
        if self.agent is None:
            print("stopped before it began", file=sys.stderr)
            raise SystemExit(stop_request.REQUEUE)
        before, self.asked_at = self.asked_at, time.monotonic()
        if before is not None and self.asked_at - before < stop_request.SAME_REQUEST_SECONDS:
            self.asked_at = before
            return
        if before is not None or not self._started():
            self.agent.send_signal(signal.SIGINT)
        else:
            stop_request.say_that_it_stops()
        (self.answers / "stop").touch()

    def run(self, start: Callable[[], Agent], patience: float | None) -> int:
        """Return the exit code of the processes, or `REQUEUE` if they have stopped as asked.

        Args:
            patience: seconds after which they are ended if none has begun.
        """
        self.agent = start()
        code = self._wait(self.agent, patience)
        if (self.answers / "stopped").exists() or (
            self.asked_at is not None and not self._started()
        ):
            return stop_request.REQUEUE
        return code if code >= 0 else 128 - code

    def _wait(self, agent: Agent, patience: float | None) -> int:
        # torchrun's own limits do not cover a node that finds a rendezvous full
        ends, interrupted = [signal.SIGINT, signal.SIGKILL], False
        while True:
            try:
                return agent.wait(patience)
            except KeyboardInterrupt:
                print("interrupted: ending all processes", file=sys.stderr)
                # a terminal has sent it to them, too
                patience, interrupted = ENDING_SECONDS, True
            except subprocess.TimeoutExpired:
                if self._started() and not interrupted:
                    patience = None
                else:
                    agent.send_signal(ends.pop(0))
                    patience = ENDING_SECONDS if ends else None

    def _started(self) -> bool:
        return (self.answers / "started").exists()
