"""Store the cause that ended a training run in a file, for the last line of its launcher."""

import json
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

_FILE = "cause"
_OURS = (-signal.SIGABRT, -signal.SIGKILL)  # how the launcher ends a process that hangs
RESUME = "then start the same command again: it resumes from the last checkpoint"


@dataclass(frozen=True)
class Cause:
    """Name the process whose end ended all others.

    Attributes:
        code: its exit code, or a signal's number with a minus.
        stall: how it hung, if the launcher ended it for that.
        meeting: why a restart failed, if the nodes did not meet again.
    """

    rank: int
    code: int
    stall: str = ""
    meeting: str = ""

    def describe(self) -> str:
        """Return which process it was, and how it ended."""
        if self.meeting:
            return self.meeting
        if self.stall:
            return self.stall
        if self.code >= 0:
            return f"rank {self.rank} failed with exit code {self.code}"
        memory = ": is the machine out of memory?" if self.code == -signal.SIGKILL else ""
        name = signal.Signals(-self.code).name
        return f"rank {self.rank} was killed by signal {-self.code} ({name}){memory}"

    def advise(self, logs: Path) -> str:
        """Return `describe`, and what to do.

        Args:
            logs: the folder of the processes' logs.
        """
        if self.meeting:
            advice = f"{RESUME.removeprefix('then ')}. Do so on all nodes"
        elif self.stall:
            advice = (
                f"the stacks are at the end of {logs}/rank*.log. Check that process, its "
                f"machine, disk and network, {RESUME}. --stall-timeout sets a longer wait"
            )
        elif self.code == -signal.SIGKILL:
            advice = (
                "See the kernel's log (dmesg). If so, lower --max-tokens or the number of "
                f"processes, {RESUME}"
            )
            return f"{self.describe()} {advice}"
        else:
            advice = f"the reason is at the end of {logs}/rank{self.rank}.log"
        return f"{self.describe()}; {advice}"


def note(folder: Path, cause: Cause) -> None:
    """Store a cause in a folder; what follows from a hung process does not replace the hang."""
    before = read(folder)
    follows = cause.code in _OURS or bool(cause.meeting)
    if before is None or not before.stall or cause.stall or not follows:
        (folder / _FILE).write_text(json.dumps(asdict(cause)), encoding="utf-8")


def read(folder: Path) -> Cause | None:
    """Return the cause that a folder holds, if any."""
    path = folder / _FILE
    return Cause(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def forget(folder: Path) -> None:
    """Remove the cause from a folder: all processes start again."""
    (folder / _FILE).unlink(missing_ok=True)
