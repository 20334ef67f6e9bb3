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

from highrank_plugins.common import heartbeat, stop_request
from highrank_plugins.common.processes import end_with_parent
from highrank_plugins.training.launch.plan import Plan, rank_words

POLL_SECONDS = 0.1
LAST_WORDS_SECONDS = 5  # lets the others report what they saw before they are killed


class LocalRanks:
    """Manage all processes of a training run, with the methods of one `Popen`.

    They meet in a file of `folder`, which is private to this user. `say` receives a line for each
    process that fails and for each restart.
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
                self._say(f"starting again ({self._restarts} of {self._plan.max_restarts})")
                self._ranks = self._start()
            elif None not in codes:
                return 0
            elif time.monotonic() >= end:
                raise subprocess.TimeoutExpired("the training", timeout or 0)
            else:
                time.sleep(POLL_SECONDS)

    def _start(self) -> list[subprocess.Popen[bytes]]:
        line = rank_words(self._plan, f"file://{self._folder}/store-{self._restarts}")
        size, launcher = str(self._plan.world_size), str(os.getpid())
        shared = self._environment | {"WORLD_SIZE": size, stop_request.LAUNCHED: launcher}
        return [
            subprocess.Popen(
                line,
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                preexec_fn=prepare_child,
            )
            for rank in range(self._plan.per_node)
        ]

    def _end_others(self, failed: int, code: int) -> None:
        why = heartbeat.stall(self._folder) or describe(failed, code)
        self._say(f"{why}; ending the other processes")
        (self._folder / "failed").write_text(f"{failed} {code}", encoding="utf-8")
        self._hear_last_words()
        if heartbeat.stall(self._folder):
            for process in self._ranks:  # one that hangs or is stopped writes its stacks
                process.send_signal(signal.SIGABRT)
                process.send_signal(signal.SIGCONT)
            self._hear_last_words()
        for process in self._ranks:
            process.kill()
            with suppress(subprocess.TimeoutExpired):  # the process may be waiting for a dead disk
                process.wait(LAST_WORDS_SECONDS)

    def _hear_last_words(self) -> None:
        end = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < end and any(process.poll() is None for process in self._ranks):
            time.sleep(POLL_SECONDS)


def describe(rank: int, code: int) -> str:
    """Return how a process has ended."""
    if code >= 0:
        return f"rank {rank} failed with exit code {code}"
    memory = ": is the machine out of memory?" if code == -signal.SIGKILL else ""
    return f"rank {rank} was killed by signal {-code} ({signal.Signals(-code).name}){memory}"


def prepare_child() -> None:
    """Make a new process end with its parent, and ignore stop requests until it listens."""
    end_with_parent()
    stop_request.ignore()
