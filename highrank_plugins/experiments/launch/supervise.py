"""Starts the processes of this machine, hands on requests to stop, and says how it ended."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from highrank_plugins import _stop_request
from highrank_plugins._processes import end_with_parent
from highrank_plugins.experiments.launch.plan import (
    LOOPBACK,
    STARTING_SECONDS,
    Plan,
    check_disk,
    check_gpus,
    free_port,
)
from highrank_plugins.experiments.launch.rendezvous import check_rendezvous
from highrank_plugins.experiments.launch.torchrun import environment, run_id, torchrun_words

ENDING_SECONDS = 30  # beyond the time in which nodes must meet: for torchrun to end


def launch(plan: Plan, say: Callable[[str], object]) -> int:
    """Train; the exit code: 0, that of a failure, or `_stop_request.REQUEUE` to be started again.

    Raises:
        ValueError: it cannot start; see `Plan.check_meeting`, `check_gpus`, `check_rendezvous`.
        SystemExit: asked to stop before it began, with that code.
    """
    with TemporaryDirectory(prefix="highrank-launch-") as folder:
        answers = Path(folder)
        supervisor = _Supervisor(answers)  # listens from here on: nodes may be long in coming
        words = torchrun_words(plan, _meeting_place(plan))
        plan.finished.unlink(missing_ok=True)
        say(f"+ {shlex.join(words)}")
        patience = plan.timeout + STARTING_SECONDS if plan.nodes > 1 else None
        code = supervisor.run(words, environment(plan), patience)
        if code == 0:
            plan.finished.touch()
        elif code == _stop_request.REQUEUE:
            say(f"stopped, to be started again: exit code {code}")
        else:
            say(f"failed with exit code {code}: {_advice(plan, (answers / 'started').exists())}")
    return code


def _meeting_place(plan: Plan) -> str:
    """The address at which the processes meet, once it is certain that they can."""
    plan.check_meeting()
    if plan.gpus:
        check_gpus(plan.per_node)
    check_disk(plan.log_dir)
    if plan.rendezvous is None:
        return f"{LOOPBACK}:{free_port()}"
    check_rendezvous(plan.rendezvous, plan.nodes, plan.timeout, run_id(plan))
    return plan.rendezvous


def _advice(plan: Plan, started: bool) -> str:
    if plan.nodes > 1 and not started:
        return (
            f"no process was started here; {plan.nodes} nodes must have come to {plan.rendezvous} "
            f"within {plan.timeout} s (--rendezvous-timeout), each by the same command"
        )
    return f"why is at the end of a file of {plan.log_dir}/rank*.log"


class _Supervisor:
    """torchrun as a child that sees no signal but SIGINT, and the answers of its processes."""

    def __init__(self, answers: Path) -> None:
        self.answers = answers
        self.asked = False
        self.agent: subprocess.Popen[bytes] | None = None
        for number in _stop_request.SIGNALS:
            signal.signal(number, self.ask)

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Ask all processes to stop; where none has begun, or at the second time, end them."""
        if self.agent is None:
            print("asked to stop before it began", file=sys.stderr)
            raise SystemExit(_stop_request.REQUEUE)
        if self.asked or not self._started():
            self.agent.send_signal(signal.SIGINT)
        self.asked = True
        (self.answers / "stop").touch()

    def run(self, words: list[str], variables: dict[str, str], patience: float | None) -> int:
        """The exit code of torchrun, or what the answers make of it.

        Args:
            patience: seconds after which it is ended if no process has begun.
        """
        env = {**os.environ, **variables, _stop_request.DIRECTORY: str(self.answers)}
        self.agent = subprocess.Popen(words, env=env, preexec_fn=_prepare_agent)
        code = self._wait(self.agent, patience)
        if (self.answers / "stopped").exists() or (self.asked and not self._started()):
            return _stop_request.REQUEUE
        return code if code >= 0 else 128 - code

    def _wait(self, agent: subprocess.Popen[bytes], patience: float | None) -> int:
        # torchrun's own limits do not hold for a node that comes to others' full rendezvous
        ends = [signal.SIGINT, signal.SIGKILL]
        while True:
            try:
                return agent.wait(patience)
            except KeyboardInterrupt:
                print("interrupted: ending all processes", file=sys.stderr)  # torchrun got it too
            except subprocess.TimeoutExpired:
                if self._started():
                    patience = None
                else:
                    agent.send_signal(ends.pop(0))
                    patience = ENDING_SECONDS if ends else None

    def _started(self) -> bool:
        return (self.answers / "started").exists()


def _prepare_agent() -> None:
    end_with_parent()
    for number in _stop_request.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
