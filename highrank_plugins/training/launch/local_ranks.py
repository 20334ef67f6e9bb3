"""Start the processes of a training run on one machine, and end all of them when one fails.

torchrun would do so too, but its processes meet at a port that every user of the machine can reach
and write to. These meet in a file of a folder that belongs to the user alone.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from highrank_plugins.common import stop_request
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.training.launch import cause
from highrank_plugins.training.launch.plan import Plan
from highrank_plugins.training.launch.torchrun import rank_words

POLL_SECONDS = 0.1
LAST_WORDS_SECONDS = 5  # lets the others report what they saw before they are killed


class LocalRanks:
    """Manage all processes of a training run, with the methods of one `Popen`.

    Args:
        folder: private to this user; the processes meet in a file there.
        environment: for every process, without the variables of its rank.
        say: receives a line for each process that fails and for each restart.
    """

    def __init__(
        self, plan: Plan, folder: Path, environment: dict[str, str], say: Callable[[str], object]
    ) -> None:
        self._plan, self._folder, self._environment, self._say = plan, folder, environment, say
        self._restarts = 0
        self._ranks = self._start()

    def send_signal(self, number: int) -> None:
        """Send a signal to every process; no restart follows.

        Processes that a script starts in the background ignore SIGINT, and so does this one then.
        """
        self._restarts = self._plan.max_restarts
        if number == signal.SIGINT and signal.getsignal(number) == signal.SIG_IGN:
            number = signal.SIGKILL
        for process in self._ranks:
            process.send_signal(number)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code of the first process that failed, or 0."""
        try:
            return self._wait(timeout)
        except KeyboardInterrupt:
            self._restarts = self._plan.max_restarts
            raise

    def _wait(self, timeout: float | None) -> int:
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            codes = [process.poll() for process in self._ranks]
            # a killed process comes first, because the others fail when they lose it
            failures = sorted((code > 0, rank, code) for rank, code in enumerate(codes) if code)
            if failures:
                _, failed, code = failures[0]
                self._end_others(failed, code)
                if self._restarts >= self._plan.max_restarts:
                    return code
                self._restarts += 1
                cause.forget(self._folder)
                self._say(f"starting again ({self._restarts} of {self._plan.max_restarts})")
                self._ranks = self._start()
            elif None not in codes:
                return 0
            elif time.monotonic() >= end:
                raise subprocess.TimeoutExpired("the training", timeout or 0)
            else:
                time.sleep(POLL_SECONDS)

    def _start(self) -> list[subprocess.Popen[bytes]]:
        store = self._folder / f"store-{self._restarts}"
        line = rank_words(self._plan, f"file://{store}")
        return [
            subprocess.Popen(
                line,
                env=self._environment | _rank_variables(self._plan, rank),
                preexec_fn=prepare_child,
            )
            for rank in range(self._plan.per_node)
        ]

    def _end_others(self, failed: int, code: int) -> None:
        ended = cause.Cause(failed, code)
        self._say(f"{ended.describe()}; ending the other processes")
        cause.note(self._folder, ended)
        end = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < end and any(process.poll() is None for process in self._ranks):
            time.sleep(POLL_SECONDS)
        for process in self._ranks:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # the process may be waiting for a dead disk
                process.wait(LAST_WORDS_SECONDS)


def prepare_child() -> None:
    """Make a new process end with its parent, and ignore stop requests until it listens."""
    end_with_parent()
    stop_request.ignore()


def _rank_variables(plan: Plan, rank: int) -> dict[str, str]:
    """Return the variables that tell a process which one it is."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": plan.world_size}
    place[stop_request.LAUNCHED] = os.getpid()
    return {name: str(value) for name, value in place.items()}
