"""Training runs that end by SIGKILL at a chosen or random moment, and start again."""

import collections
import importlib
import os
import random
import signal
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import torch

from tests.fairseq_cli import FORKS, REPOSITORY, _run
from tests.free_port import free_address
from tests.trainings import in_group, leaves

TRAINER = "fairseq.trainer:Trainer"
# functions that are called at a start, in an update, a validation, a save, and between epochs
MOMENTS = [
    "fairseq.checkpoint_utils:load_checkpoint", f"{TRAINER}.zero_grad", f"{TRAINER}.clip_grad_norm",
    f"{TRAINER}.set_num_updates", f"{TRAINER}.begin_valid_epoch", f"{TRAINER}.valid_step",
    "torch:save", "os:fsync", "os:replace", "os:link", f"{TRAINER}.state_dict",
    f"{TRAINER}.begin_epoch", f"{TRAINER}.get_train_iterator", f"{TRAINER}.lr_step",
]  # fmt: skip
_LEFT_OUT = {"cfg", "args", "metrics", "previous_training_time"}
WAIT_SECONDS = 900  # then it is stuck


class Kill(NamedTuple):
    """Describe a SIGKILL at one rank's n-th call of a function, or after seconds in all."""

    function: str = ""
    call: int = 0
    rank: int = 0
    seconds: float | None = None


def train(words: list[object], processes: int, folder: Path, kill: Kill | None = None) -> bool:
    """Train in `folder`, and return whether the training run was killed.

    Processes that are left when one dies are killed, as by a launcher.
    """
    address, logs, ranks = free_address(), [], []
    for rank in range(processes):
        group = in_group(address, rank, processes) if processes > 1 else []
        more = ["--save-dir", folder, "--user-dir", f"{REPOSITORY}/highrank_plugins", "--cpu"]
        logs.append(folder.with_suffix(f".rank{rank}"))
        line = [str(word) for word in ("fairseq-train", *words, *more, *group)]
        mine = kill if kill and kill.rank == rank else None
        ranks.append(FORKS.Process(target=_train, args=(line, str(logs[-1]), mine)))
    for process in ranks:
        process.start()
    seconds = kill.seconds if kill else None
    running = {process.sentinel: process for process in ranks}
    while running:
        ended = wait(running, seconds or WAIT_SECONDS)
        assert ended or seconds, f"no end within {WAIT_SECONDS} s{_ends(logs)}"
        if any(running.pop(sentinel).exitcode for sentinel in ended) or not ended:
            for process in running.values():
                process.kill()
    for process in ranks:
        process.join()
    codes = {process.exitcode for process in ranks}
    killed = kill is not None and -signal.SIGKILL in codes
    assert codes == {0} or killed, f"exit codes {codes}{_ends(logs)}"
    return killed


def _ends(logs: list[Path]) -> str:
    return "".join(f"\n== {log}\n{log.read_text()[-3000:]}" for log in logs if log.exists())


def _train(argv: list[str], log: str, kill: Kill | None) -> None:
    if kill and kill.function:
        _die_at(kill)
    _run("train", argv, log, os.devnull)


def _die_at(kill: Kill) -> None:
    """End this process by SIGKILL when a call of a function begins."""
    module, place = kill.function.split(":")
    owner = importlib.import_module(module)
    *path, name = place.split(".")
    for part in path:
        owner = getattr(owner, part)
    stock, calls = getattr(owner, name), collections.Counter[str]()

    def counted(*args, **kwargs):
        calls[name] += 1
        if calls[name] == kill.call:
            os.kill(os.getpid(), signal.SIGKILL)
        return stock(*args, **kwargs)

    setattr(owner, name, counted)


def draw(seed: int, seconds: float, processes: int) -> Iterator[Kill]:
    """Draw kills without end: at any time, or at one of a rank's calls, which may never come."""
    rng = random.Random(seed)
    while True:
        yield Kill(seconds=rng.uniform(0, seconds))
        for _ in range(4):
            yield Kill(rng.choice(MOMENTS), rng.randint(1, 12), rng.randrange(processes))


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
