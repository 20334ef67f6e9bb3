"""Training runs that end by SIGKILL at a chosen or random moment, and start again.

They have the bits of one that is not killed.
"""

import collections
import importlib
import os
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from tests.fairseq_cli import FORKS, REPOSITORY, _run
from tests.free_port import free_address
from tests.stream_corpus import LOSS, SHAPE, STREAMS
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION, in_group, leaves

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
# --nonmono 0: the validation after epoch 2 turns averaging on
STREAM_WORDS = [*SHAPE, *LOSS, *STREAMS, "--arch", "awd_lstm_lm_softmax", "--lr", 10,
                "--nonmono", 0, "--max-epoch", 3, "--save-interval-updates", 6]  # fmt: skip
PAIR_WORDS = [*TRANSLATION, *NARROW, *OUR_LOSS, "--arch", "transformer_mos_tiny", "--max-tokens",
              700, "--max-epoch", 4, "--patience", 9, "--save-interval-updates", 3,
              "--keep-interval-updates", 1]  # fmt: skip
KILLS = {
    "language model": [(f"{TRAINER}.clip_grad_norm", 9), ("os:replace", 3),
                       (f"{TRAINER}.valid_step", 30), (f"{TRAINER}.begin_epoch", 2)],
    "language model, 2 processes": [("os:fsync", 1), (f"{TRAINER}.zero_grad", 20)],
    "translation": [(f"{TRAINER}.set_num_updates", 7), ("os:replace", 2),
                    (f"{TRAINER}.get_train_iterator", 3), ("os:link", 2)],
    "translation, 2 processes": [(f"{TRAINER}.clip_grad_norm", 5), (f"{TRAINER}.valid_step", 2)],
}  # fmt: skip
pytestmark = pytest.mark.xdist_group("kills")


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


@pytest.fixture(scope="module", params=KILLS)
def unbroken(request, stream_data, mt_data, tmp_path_factory):
    """Return name, words, processes, results and seconds of an unbroken training run."""
    processes = 2 if "2 processes" in request.param else 1
    words = [stream_data, *STREAM_WORDS, "--batch-size", 4 // processes]
    if "translation" in request.param:
        words = [mt_data, *PAIR_WORDS]
    folder, began = tmp_path_factory.mktemp("unbroken") / "one", time.monotonic()
    assert not train(words, processes, folder)
    return request.param, words, processes, results(folder), time.monotonic() - began


def test_a_run_survives_kills_in_steps_saves_and_validations(unbroken, tmp_path):
    name, words, processes, want, _ = unbroken
    for index, (function, call) in enumerate(KILLS[name]):
        kill = Kill(function, call, rank=index % processes)
        assert train(words, processes, tmp_path / "one", kill), f"{kill} never came"
    assert not train(words, processes, tmp_path / "one")
    assert not differences(results(tmp_path / "one"), want)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_run_killed_25_times_ends_with_the_same_bits(unbroken, tmp_path):
    name, words, processes, want, seconds = unbroken
    moments = draw(7, seconds, processes)
    kills = ends = 0
    is_running = True
    while kills < 25 or is_running:
        kill = next(moments) if kills < 25 else None
        is_running = train(words, processes, tmp_path / str(ends), kill)
        kills += is_running
        if not is_running:
            assert not differences(results(tmp_path / str(ends)), want), f"after {kills} kills"
            ends += 1
    print(f"{name}: {kills} kills, {ends} training runs")
