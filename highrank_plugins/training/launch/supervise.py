"""Start the processes of this machine, pass stop requests on, and report how they ended."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from highrank_plugins.common import heartbeat, stop_request
from highrank_plugins.common.files import open_own
from highrank_plugins.common.folders import log_folder
from highrank_plugins.common.processes import end_with_parent, usable_cores
from highrank_plugins.training.launch import torchrun
from highrank_plugins.training.launch.plan import (
    Plan,
    check_machine,
    check_program,
    environment,
    rank_words,
    refuse_missing,
    save_dir,
)

POLL_SECONDS = 0.1
NEVER = float("inf")
LAST_WORDS_SECONDS = 5  # lets the others report what they saw before they are killed
ENDING_SECONDS = 30  # seconds for torchrun to end after its processes, or a signal
AGAIN = "start the same command again: it resumes from the last checkpoint"


class LocalRanks:
    """Manage all processes of a training run, with the methods of one `Popen`.

    torchrun's processes meet at a port that every user of the machine can reach and write to. These
    meet in a file of `folder`, which is private to this user.
    """

    def __init__(
        self, plan: Plan, folder: Path, environment: dict[str, str], say: Callable[[str], object]
    ) -> None:
        self._plan, self._folder, self._environment, self._say = plan, folder, environment, say
        self._restarts = 0
        self._ranks = self._start()

    def send_signal(self, number: int) -> None:
        """Send a signal to every process; no restart follows."""
        self._restarts = self._plan.max_restarts
        # processes that a script starts in the background ignore SIGINT, and so does this one then
        if number == signal.SIGINT and signal.getsignal(number) == signal.SIG_IGN:
            number = signal.SIGKILL
        for process in self._ranks:
            process.send_signal(number)

    def poll(self) -> int | None:
        """Return the exit code of the first process that failed, 0 once all have ended, or None."""
        codes = [process.poll() for process in self._ranks]
        failures = sorted((_distance(code), rank, code) for rank, code in enumerate(codes) if code)
        if not failures:
            return None if None in codes else 0
        _, failed, code = failures[0]
        self._end_others(failed, code)
        if self._restarts >= self._plan.max_restarts:
            return code
        self._restarts += 1
        self._say(f"starting again ({self._restarts} of {self._plan.max_restarts})")
        self._ranks = self._start()
        return None

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
        why = heartbeat.stall(self._folder) or _describe(failed, code)
        self._say(f"{why}; ending the other processes")
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


def _distance(code: int) -> int:
    """Order ends by how near the cause they are: others fail or abort when they lose a process."""
    if code < 0 and code != -signal.SIGABRT:
        return 0
    return {2: 1, -signal.SIGABRT: 2}.get(code, 3)  # 2: it has refused its options or data


def _describe(rank: int, code: int) -> str:
    """Return how a process has ended."""
    if code >= 0:
        return f"rank {rank} failed with exit code {code} (see rank{rank}.log)"
    signalled = f"rank {rank} was killed by signal {-code} ({signal.Signals(-code).name})"
    memory = ": is the machine out of memory? Then lower --max-tokens"
    return signalled + memory * (code == -signal.SIGKILL)


def prepare_child() -> None:
    """Make a new process end with its parent, and ignore stop requests until it listens."""
    end_with_parent()
    stop_request.ignore()


# supervises the processes of this machine: torchrun's agent, with SIGINT only
Agent = LocalRanks | subprocess.Popen[bytes]


def launch(plan: Plan, say: Callable[[str], object]) -> int:
    """Train, and return the exit code: 0, a failure's, or `stop_request.REQUEUE` to start again."""
    with stop_request.handlers_restored(), TemporaryDirectory(prefix="highrank-launch-") as folder:
        answers = Path(folder)
        supervisor = _Supervisor(answers)  # listens from here on, because nodes may arrive late
        plan.check_meeting()
        with log_folder(plan.log_dir, save_dir(plan.command), is_shared=plan.nodes > 1):
            check_machine(plan)
            for log in plan.log_dir.glob("rank*.log"):
                open_own(log, "ab").close()  # the processes append to it
            if plan.nodes > 1:
                torchrun.check_rendezvous(str(plan.rendezvous), plan.timeout, plan.run_id)
            plan.finished.unlink(missing_ok=True)
            waiting = plan.timeout + torchrun.STARTING_SECONDS
            patience = waiting if plan.nodes > 1 else NEVER
            again = ENDING_SECONDS + (plan.timeout if plan.max_restarts else 0)
            code = supervisor.run(partial(_start, plan, answers, say), patience, again)
            if code == 0:
                plan.finished.touch()
        if code == stop_request.REQUEUE:
            say(f"stopped; start it again to resume (exit code {code})")
        elif code:
            say(f"failed with exit code {code}: {_advice(plan, answers)}")
    return code


def _start(plan: Plan, folder: Path, say: Callable[[str], object]) -> Agent:
    """Start the processes of this machine, which answer stop requests by files in `folder`."""
    env = os.environ | environment(plan) | {stop_request.DIRECTORY: str(folder)}
    if plan.nodes == 1:
        say(f"+ {shlex.join(plan.command)} as {plan.world_size} processes of this machine")
        return LocalRanks(plan, folder, env, say)
    words = torchrun.torchrun_words(plan)
    say(f"+ {shlex.join(words)}")
    env[stop_request.LAUNCHED] = str(os.getpid())
    return subprocess.Popen(words, env=env, preexec_fn=prepare_child)


def _advice(plan: Plan, answers: Path) -> str:
    """Return what has ended the training run, as far as that was not said, and what to do."""
    if stall := heartbeat.stall(answers):
        return (
            f"{stall}; the stacks are at the end of {plan.log_dir}/rank*.log. Check that process, "
            f"its machine, disk and network, then {AGAIN}. --stall-timeout sets a longer wait"
        )
    if plan.nodes > 1 and not (answers / "started").exists():
        return (
            f"no process was started here: all {plan.nodes} nodes must reach "
            f"{plan.rendezvous} within {plan.timeout} s (--rendezvous-timeout), each with the "
            "same command"
        )
    return (
        f"the reason is above, or at the end of {plan.log_dir}/rank*.log. When it is gone, {AGAIN}"
    )


class _Supervisor:
    """Pass stop requests on to the processes of this machine, and collect their answers."""

    def __init__(self, answers: Path) -> None:
        self.answers = answers
        self.asked_at: float | None = None
        self.agent: Agent | None = None
        stop_request.handle(self.ask, lambda: self.asked_at)

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """Ask all processes to stop; end them if none has begun, or at the second request."""
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
        agent = self.agent = start()
        # torchrun's own limits cover neither a node that finds a rendezvous full nor a store on a
        # machine that is lost
        code, begun, stalled, ends = None, time.monotonic(), NEVER, NEVER
        while code is None:
            now = time.monotonic()
            stalled = min(stalled, now) if heartbeat.stall(self.answers) else NEVER
            if now > min(ends, stalled + again):
                agent.send_signal(signal.SIGKILL)
            elif now > begun + patience and ends == NEVER and not self._started():
                agent.send_signal(signal.SIGINT)
                ends = now + ENDING_SECONDS
            try:
                time.sleep(POLL_SECONDS)
                code = agent.poll()
            except KeyboardInterrupt:
                print("interrupted: ending all processes", file=sys.stderr)
                agent.send_signal(0)  # no restart; a terminal has sent the signal to them, too
                ends = now + ENDING_SECONDS
        asked_early = self.asked_at is not None and not self._started()
        if asked_early or (self.answers / "stopped").exists():
            return stop_request.REQUEUE
        return code if code >= 0 else 128 - code

    def _started(self) -> bool:
        return (self.answers / "started").exists()


# -- fairseq-generate --

_GENERATE = "fairseq-generate"
# S-0, T-0, H-0, D-0, P-0, A-0, I-0 and E-0_1 of sentence 0, each before a tab
_LINES = re.compile(rb"^[A-Z]-(\d+)(?:_\d+)?\t[^\n]*\n", re.MULTILINE)
_REFUSED = {
    "--distributed-world-size": "the launcher sets it",
    "--distributed-rank": "the launcher sets it",
    "--num-shards": "fairseq-generate ignores it",
    "--shard-id": "fairseq-generate ignores it",
    "--results-path": "redirect the output, or use --output",
    "--quiet": "there is nothing to merge",
}


def console_script(name: str) -> str:
    """Return the path of a program of this environment, or of another on the PATH."""
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return shutil.which(name, path=folders) or name


def generated(command: Sequence[str], processes: int) -> list[bytes]:
    """Return fairseq-generate's lines about each sentence, sorted by its number, without the BLEU.

    Processes get whole batches, so each batch is computed as by one process. They share the GPUs,
    or the CPU's cores. Each refuses batches that lack a sentence, and one that fails ends all.
    """
    check_program(command, _GENERATE, _REFUSED)
    if processes > 1 and "--sampling" in command:
        raise ValueError(
            "--sampling draws other hypotheses with several processes; use one process"
        )
    refuse_missing(command)
    with TemporaryDirectory(prefix="highrank-generate-") as folder:
        shares = [Path(folder, f"share{index}") for index in range(processes)]
        _run_all(command, shares)
        text = b"".join(share.read_bytes() for share in shares)
    lines = sorted(_LINES.finditer(text), key=lambda line: int(line[1]))
    return [line[0] for line in lines]


def _run_all(command: Sequence[str], shares: list[Path]) -> None:
    """Write a share of the output into each file, and a log beside it."""
    environments, count, running = _environments(len(shares)), str(len(shares)), []
    program = console_script(_GENERATE)
    for index, share in enumerate(shares):
        place = ["--distributed-world-size", count, "--distributed-rank", str(index)]
        with share.open("wb") as out, share.with_suffix(".log").open("wb") as log:
            running.append(subprocess.Popen(
                [program, *command[1:], *place], stdout=out, stderr=None if index == 0 else log,
                env=os.environ | environments[index], preexec_fn=end_with_parent,
            ))  # fmt: skip
    try:
        is_running = True
        while is_running:
            time.sleep(0.05)
            is_running = any([process.poll() is None for process in running])
            for index, process in enumerate(running):
                if code := process.returncode:
                    log_text = shares[index].with_suffix(".log").read_text(errors="replace")
                    last = log_text.strip().splitlines()[-3:]
                    failed = f"{_GENERATE} {index} of {count} failed: exit {code}"
                    raise ValueError("\n".join([failed, *last]))
    finally:
        for process in running:
            process.kill()
            process.wait()


def _environments(processes: int) -> list[dict[str, str]]:
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        threads = max(1, usable_cores() // processes)
        return [{"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}] * processes
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": names[index % count]} for index in range(processes)]
