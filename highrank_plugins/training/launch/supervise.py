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

from highrank_plugins.common import heartbeat, stop_request
from highrank_plugins.common.files import open_own
from highrank_plugins.common.folders import log_folder
from highrank_plugins.training.launch.flags import save_dir
from highrank_plugins.training.launch.local_ranks import LocalRanks, describe, prepare_child
from highrank_plugins.training.launch.plan import Plan, check_machine, environment
from highrank_plugins.training.launch.torchrun import (
    STARTING_SECONDS,
    check_rendezvous,
    torchrun_words,
)

# supervises the processes of this machine: torchrun's agent, with SIGINT only
Agent = LocalRanks | subprocess.Popen[bytes]
LOOK_SECONDS = 1.0
ENDING_SECONDS = 30  # seconds for torchrun to end after its processes, or a signal
AGAIN = "start the same command again: it resumes from the last checkpoint"


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
            patience = plan.timeout + STARTING_SECONDS if plan.nodes > 1 else float("inf")
            again = ENDING_SECONDS + (plan.timeout if plan.max_restarts else 0)
            code = supervisor.run(partial(_start, plan, answers, say), patience, again)
            if code == 0:
                plan.finished.touch()
        if code == stop_request.REQUEUE:
            say(f"stopped; start it again to resume (exit code {code})")
        elif code:
            say(f"failed with exit code {code}: {_advice(plan, answers)}")
    return code


def _check(plan: Plan, say: Callable[[str], object]) -> None:
    """Raise an error if the processes cannot run here, or cannot meet."""
    check_machine(plan)
    for log in plan.log_dir.glob("rank*.log"):
        open_own(log, "ab").close()  # the processes append to it
    if plan.nodes > 1:
        check_rendezvous(str(plan.rendezvous), plan.timeout, plan.run_id)
    elif plan.rendezvous is not None:
        say(f"--rendezvous {plan.rendezvous} is not used: one machine needs no port")


def _start(plan: Plan, folder: Path, say: Callable[[str], object]) -> Agent:
    """Start the processes of this machine, which answer stop requests by files in `folder`."""
    env = os.environ | environment(plan) | {stop_request.DIRECTORY: str(folder)}
    if plan.nodes == 1:
        say(f"+ {shlex.join(plan.command)} as {plan.world_size} processes of this machine")
        return LocalRanks(plan, folder, env, say)
    words = torchrun_words(plan)
    say(f"+ {shlex.join(words)}")
    env[stop_request.LAUNCHED] = str(os.getpid())
    return subprocess.Popen(words, env=env, preexec_fn=prepare_child)


def _advice(plan: Plan, answers: Path) -> str:
    """Return what has ended the training run, and what to do."""
    logs, apart, failed = plan.log_dir, answers / "apart", answers / "failed"
    if stall := heartbeat.stall(answers):
        return (
            f"{stall}; the stacks are at the end of {logs}/rank*.log. Check that process, its "
            f"machine, disk and network, then {AGAIN}. --stall-timeout sets a longer wait"
        )
    if apart.exists():
        return f"{apart.read_text(encoding='utf-8')}; {AGAIN}. Do so on all nodes"
    if failed.exists():
        rank, code = map(int, failed.read_text(encoding="utf-8").split())
        if code != -signal.SIGKILL:
            return f"{describe(rank, code)}; the reason is at the end of {logs}/rank{rank}.log"
        return (
            f"{describe(rank, code)} See the kernel's log (dmesg). If so, lower --max-tokens or "
            f"the number of processes, then {AGAIN}"
        )
    if plan.nodes > 1 and not (answers / "started").exists():
        return (
            f"no process was started here: all {plan.nodes} nodes must reach "
            f"{plan.rendezvous} within {plan.timeout} s (--rendezvous-timeout), each with the "
            "same command"
        )
    return f"the reason is at the end of a file {logs}/rank*.log"


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

    def run(self, start: Callable[[], Agent], patience: float, again: float = 0) -> int:
        """Return the exit code of the processes, or `REQUEUE` if they have stopped as asked.

        If none has begun within `patience` seconds, they are ended. So they are `again` seconds
        after one has ended itself because it made no progress, if they do not start again.
        """
        self.agent = start()
        code = self._wait(self.agent, patience, again)
        if (self.answers / "stopped").exists() or (
            self.asked_at is not None and not self._started()
        ):
            return stop_request.REQUEUE
        return code if code >= 0 else 128 - code

    def _wait(self, agent: Agent, patience: float, again: float) -> int:
        # torchrun's own limits cover neither a node that finds a rendezvous full nor a store on a
        # machine that is lost
        begun, stalled, ends = time.monotonic(), float("inf"), float("inf")
        while True:
            now = time.monotonic()
            try:
                return agent.wait(LOOK_SECONDS)
            except KeyboardInterrupt:
                print("interrupted: ending all processes", file=sys.stderr)
                ends = now + ENDING_SECONDS  # a terminal has sent it to them, too
            except subprocess.TimeoutExpired:
                stalled = min(stalled, now) if heartbeat.stall(self.answers) else float("inf")
                if now > min(ends, stalled + again):
                    agent.send_signal(signal.SIGKILL)
                elif now > begun + patience and ends == float("inf") and not self._started():
                    agent.send_signal(signal.SIGINT)
                    ends = now + ENDING_SECONDS

    def _started(self) -> bool:
        return (self.answers / "started").exists()
