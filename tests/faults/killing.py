"""Training runs that end by SIGKILL at a chosen or random moment, and start again."""

import collections
import importlib
import itertools
import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import torch

from tests.fairseq_cli import FORKS, REPOSITORY, _run
from tests.free_port import free_address
from tests.trainings import leaves

# What a process is doing, by functions that it calls then.
MOMENTS = {
    "start": ("fairseq.checkpoint_utils:load_checkpoint", "fairseq.trainer:Trainer.lr_step"),
    "step": ("fairseq.trainer:Trainer.zero_grad", "fairseq.trainer:Trainer.clip_grad_norm",
             "fairseq.trainer:Trainer.set_num_updates"),
    "validation": ("fairseq.trainer:Trainer.begin_valid_epoch",
                   "fairseq.trainer:Trainer.valid_step"),
    "save": ("torch:save", "os:fsync", "os:replace", "os:link",
             "fairseq.trainer:Trainer.state_dict"),
    "epochs": ("fairseq.trainer:Trainer.begin_epoch",
               "fairseq.trainer:Trainer.get_train_iterator"),
}  # fmt: skip
_LEFT_OUT = {"cfg", "args", "metrics", "previous_training_time"}
WAIT_SECONDS = 900  # then it is stuck


@dataclass(frozen=True)
class Kill:
    """Describe a SIGKILL at one rank's n-th call of a function, or after seconds in all."""

    function: str = ""
    call: int = 0
    rank: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class Training:
    """Hold the words of `fairseq-train` without --save-dir, and the number of processes."""

    words: tuple[str, ...]
    processes: int = 1

    def start(self, folder: Path, kill: Kill | None = None) -> bool:
        """Train in `folder`, and return whether the training run was killed.

        Processes that are left when one dies are killed, as by a launcher.
        """
        group = [self._flags(rank, address) for address in [free_address()] for rank in self._ranks]
        logs = [_log(folder, rank) for rank in self._ranks]
        ranks = []
        for rank, (flags, log) in enumerate(zip(group, logs, strict=True)):
            argv = ["fairseq-train", *self.words, "--save-dir", str(folder), *flags]
            mine = kill if kill and kill.rank == rank else None
            ranks.append(FORKS.Process(target=_train, args=(argv, str(log), mine)))
        for process in ranks:
            process.start()
        in_time = kill is not None and kill.seconds is not None
        at_most = kill.seconds if in_time else WAIT_SECONDS
        running = {process.sentinel: process for process in ranks}
        while running:
            ended = wait(running, at_most)
            assert ended or in_time, f"no end within {WAIT_SECONDS} s{_ends(logs)}"
            if any(running.pop(sentinel).exitcode for sentinel in ended) or not ended:
                for process in running.values():
                    process.kill()
        for process in ranks:
            process.join()
        codes = {process.exitcode for process in ranks}
        killed = kill is not None and -signal.SIGKILL in codes
        assert codes == {0} or killed, f"exit codes {codes}{_ends(logs)}"
        return killed

    @property
    def _ranks(self) -> range:
        return range(self.processes)

    def _flags(self, rank: int, address: str) -> list[str]:
        flags = ["--user-dir", f"{REPOSITORY}/highrank_plugins", "--cpu"]
        if self.processes == 1:
            return flags
        return [
            *flags, "--distributed-world-size", str(self.processes), "--device-id", "0",
            "--distributed-init-method", address, "--distributed-no-spawn",
            "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp",
            "--distributed-rank", str(rank),
        ]  # fmt: skip


def _log(folder: Path, rank: int) -> Path:
    return folder.with_suffix(f".rank{rank}")


def _ends(logs: list[Path]) -> str:
    return "".join(f"\n== {log}\n{log.read_text()[-3000:]}" for log in logs if log.exists())


def _train(argv: list[str], log: str, kill: Kill | None) -> None:
    calls: collections.Counter[str] = collections.Counter()
    for function in itertools.chain(*MOMENTS.values()):
        _count(function, calls, kill.call if kill and kill.function == function else 0)
    _run("train", argv, log, os.devnull)
    _calls(log).write_text(json.dumps(calls))


def _calls(log: str | Path) -> Path:
    return Path(f"{log}.calls")


def _count(function: str, calls: collections.Counter[str], last: int) -> None:
    """Count the calls of a function; die by SIGKILL when the `last` one begins."""
    module, place = function.split(":")
    owner = importlib.import_module(module)
    *path, name = place.split(".")
    for part in path:
        owner = getattr(owner, part)
    stock = getattr(owner, name)

    def counted(*args, **kwargs):
        calls[function] += 1
        if calls[function] == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return stock(*args, **kwargs)

    setattr(owner, name, counted)


def draw(seed: int, folder: Path, seconds: float, processes: int) -> Iterator[Kill]:
    """Draw kills without end: at a call that a rank of the finished run did, or any time."""
    rng = random.Random(seed)
    calls = [json.loads(_calls(_log(folder, rank)).read_text()) for rank in range(processes)]
    while True:
        yield Kill(seconds=rng.uniform(0, seconds))
        for functions in MOMENTS.values():
            function, rank = rng.choice(functions), rng.randrange(processes)
            if count := calls[rank].get(function):
                yield Kill(function, rng.randint(1, count), rank)


def results(folder: Path) -> dict[str, object]:
    """Return every tensor and number of every checkpoint, by its place.

    Left out are times, and the averages that fairseq logs: it forgets them in part.
    """
    found = {}
    for path in sorted(folder.glob("checkpoint*")):
        state = torch.load(path, weights_only=True)
        state["optimizer_history"] = state["optimizer_history"][-1]  # one more for each start
        found |= {f"{path.name}{place}": value for place, value in leaves(state)}
    return {place: found[place] for place in found if not _LEFT_OUT & set(place.split("/"))}


def differences(got: dict[str, object], want: dict[str, object]) -> list[str]:
    """Return the places where two results differ, by one bit or more."""
    places = sorted(got.keys() ^ want.keys())
    for place in got.keys() & want.keys():
        one, other = got[place], want[place]
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            equal = one.dtype == other.dtype and torch.equal(one, other)
        else:
            equal = type(one) is type(other) and one == other
        if not equal:
            places.append(f"{place}: {one} for {other}"[:200])
    return places
