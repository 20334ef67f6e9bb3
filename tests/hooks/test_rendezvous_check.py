"""Processes that do not belong together say so, all of them, and in time."""

import logging
import os
import re
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks.distributed import disagreement, refuse_lone_ranks
from tests.fairseq_cli import FORKS, _run
from tests.free_port import free_address
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION

TIMEOUT = 6


def note(**changes):
    return {"host": "a", "world_size": 2, "device": None, "problem": None} | changes


def train_with(environment: dict[str, str], argv: list[str], log: str) -> None:
    os.environ.update(environment)
    _run("train", argv, log, os.devnull)


def attempt(data: Path, folder: Path, *flags: object, **environment: str):
    """Run a process that trains, with what a launcher gives it."""
    log = folder / f"{len(list(folder.glob('log*')))}.log"
    where = ["--save-dir", folder / "save", "--arch", "transformer_softmax_tiny"]
    words = ["fairseq-train", data, *where, *TRANSLATION, *NARROW, *OUR_LOSS, *flags]
    argv = [*map(str, words), "--user-dir", str(Path(__file__).parents[2] / "highrank_plugins")]
    limit = {"HIGHRANK_RENDEZVOUS_TIMEOUT": str(TIMEOUT)}
    child = FORKS.Process(target=train_with, args=(limit | environment, argv, str(log)))
    child.start()
    return child, log


def group(address: str, rank: int, world_size: int) -> list[object]:
    return [
        *("--distributed-world-size", world_size, "--distributed-rank", rank, "--device-id", 0),
        *("--distributed-init-method", address, "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp", "--max-update", 1),
    ]


def refused(children, message: str, folder: Path) -> None:
    for child, log in children:
        child.join(120)
        assert child.exitcode == 2
        assert message in log.read_text(), log.read_text()[-2000:]
    assert not (folder / "save" / "checkpoint_last.pt").exists()


def test_a_missing_process_ends_the_others_in_time(mt_data, tmp_path):
    address, began = free_address(), time.monotonic()
    folders = [tmp_path / str(rank) for rank in (0, 1)]
    for folder in folders:
        folder.mkdir()
    children = [
        attempt(mt_data, folder, *group(address, rank, 3)) for rank, folder in enumerate(folders)
    ]
    refused(children[:1], "2/3 clients joined.): fewer were started", folders[0])
    children[1][0].join(120)
    assert children[1][0].exitcode == 2
    assert time.monotonic() - began < TIMEOUT + 60


def test_another_world_size_is_reported_to_all_before_the_time_limit(mt_data, tmp_path):
    address, longer = free_address(), {"HIGHRANK_RENDEZVOUS_TIMEOUT": "300"}
    children = [
        attempt(mt_data, tmp_path, *group(address, rank, 2 + rank), **longer) for rank in (0, 1)
    ]
    refused(children, "processes disagree on --distributed-world-size: [2, 3]", tmp_path)


def test_a_process_that_would_train_alone_refuses_to(mt_data, tmp_path):
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    child = attempt(mt_data, tmp_path, "--max-update", 1, **torchrun)
    refused([child], "2 processes were started together, and each would train alone", tmp_path)


class Slow(logging.Handler):
    """Delay rank 0, which logs that all have met, so that it comes last."""

    def emit(self, record):
        time.sleep(2 if "processes have met" in record.getMessage() else 0)


def join(address: str, rank: int, log: str) -> None:
    torch.set_num_threads(1)
    logging.getLogger("highrank_plugins").setLevel(logging.INFO)
    logging.getLogger("highrank_plugins").addHandler(Slow())
    cfg = FairseqConfig()
    cfg.common.cpu = True
    cfg.distributed_training.distributed_init_method = address
    cfg.distributed_training.distributed_rank = rank
    cfg.distributed_training.distributed_world_size = 2
    cfg.distributed_training.distributed_backend = "gloo"
    distributed_utils.distributed_init(cfg)
    total = torch.ones(1)
    torch.distributed.all_reduce(total)
    Path(log).write_text(f"{total.item():.0f}")
    torch.distributed.destroy_process_group()


def test_a_slow_first_process_leaves_no_other_behind(tmp_path):
    address, logs = free_address(), [str(tmp_path / str(rank)) for rank in (0, 1)]
    children = [
        FORKS.Process(target=join, args=(address, rank, log)) for rank, log in enumerate(logs)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        child.kill()
    assert [Path(log).read_text() for log in logs if Path(log).exists()] == ["2", "2"]


SPAWNED = {"distributed_init_method": "tcp://localhost:17", "distributed_no_spawn": False}
NODES = {"distributed_init_method": "tcp://node1:17", "distributed_no_spawn": False}


@pytest.mark.parametrize(
    ("world", "options", "alone"),
    [
        (1, {}, True),
        (2, {}, True),
        (4, {}, False),
        (4, SPAWNED, True),  # each process starts four of its own
        (16, NODES, False),  # each starts the processes of a node
    ],
)
def test_four_processes_train_one_model_or_none(monkeypatch, world, options, alone):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    cfg = FairseqConfig()
    cfg.distributed_training.distributed_no_spawn = True
    for name, value in (options | {"distributed_world_size": world}).items():
        setattr(cfg.distributed_training, name, value)
    said = r"4 processes were started together.*OMPI_COMM_WORLD_SIZE=4\): start `highrank launch`"
    with pytest.raises(UserError, match=said) if alone else nullcontext():
        refuse_lone_ranks(cfg)


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ([note(), note()], None),
        ([note(device="x"), note(device="y")], None),
        ([note(device="x"), note(device="x", host="b")], None),
        ([note(device="x"), note(device="y"), note(device="x")], "ranks 0 and 2 are both on GPU x"),
        ([note(), note(world_size=4)], r"disagree on --distributed-world-size: \[2, 4\]"),
        ([note(), note(problem="sees 1 GPUs")], "sees 1 GPUs"),
        ([note(device="x"), note(host="b")], "rank 1 on b sees no GPU, but others do"),
    ],
)
def test_disagreements_between_processes_are_reported(notes, message):
    found = disagreement(notes)
    assert (found is None) if message is None else re.search(message, found)
