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
    Plan,
    check_disk,
    check_gpus,
    free_port,
)
from highrank_plugins.experiments.launch.rendezvous import check_rendezvous
from highrank_plugins.experiments.launch.torchrun import environment, torchrun_words


def launch(plan: Plan, say: Callable[[str], object]) -> int:
    """Train; the exit code: 0, that of a failure, or `_stop_request.REQUEUE` to be started again.

    Raises:
        ValueError: it cannot start; see `Plan.check_meeting`, `check_gpus`, `check_rendezvous`.
    """
    plan.check_meeting()
    if plan.gpus:
        check_gpus(plan.per_node)
    check_disk(plan.log_dir)
    if plan.rendezvous is not None:
        check_rendezvous(plan.rendezvous, plan.nodes, plan.timeout)
    address = plan.rendezvous or f"{LOOPBACK}:{free_port()}"
    plan.finished.unlink(missing_ok=True)
    words = torchrun_words(plan, address)
    say(f"+ {shlex.join(words)}")
    with TemporaryDirectory(prefix="highrank-launch-") as folder:
        answers = Path(folder)
        code = _Supervisor(words, environment(plan), answers).wait()
        if code == 0:
            plan.finished.touch()
        elif code == _stop_request.REQUEUE:
            say(f"stopped, to be started again: exit code {code}")
        else:
            say(f"failed with exit code {code}: {_advice(plan, (answers / 'started').exists())}")
    return code


def _advice(plan: Plan, started: bool) -> str:
    if plan.nodes > 1 and not started:
        return (
            f"no process was started here; {plan.nodes} nodes must have come to {plan.rendezvous} "
            f"within {plan.timeout} s (--rendezvous-timeout), each by the same command"
        )
    return f"why is at the end of a file of {plan.log_dir}/rank*.log"


class _Supervisor:
    """torchrun as a child that sees no signal but SIGINT, and the answers of its processes."""

    def __init__(self, words: list[str], variables: dict[str, str], answers: Path) -> None:
        self.answers = answers
        self.asked = False
        for number in _stop_request.SIGNALS:
            signal.signal(number, self.ask)
        env = {**os.environ, **variables, _stop_request.DIRECTORY: str(answers)}
        self.agent = subprocess.Popen(words, env=env, preexec_fn=_prepare_agent)

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Ask all processes to stop; where none has begun, or at the second time, end them."""
        if self.asked or not (self.answers / "started").exists():
            self.agent.send_signal(signal.SIGINT)
        self.asked = True
        (self.answers / "stop").touch()

    def wait(self) -> int:
        while True:
            try:
                code = self.agent.wait()
                break
            except KeyboardInterrupt:
                print("interrupted: ending all processes", file=sys.stderr)  # torchrun got it too
        started = (self.answers / "started").exists()
        if (self.answers / "stopped").exists() or (self.asked and not started):
            return _stop_request.REQUEUE
        return code if code >= 0 else 128 - code


def _prepare_agent() -> None:
    end_with_parent()
    for number in _stop_request.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
