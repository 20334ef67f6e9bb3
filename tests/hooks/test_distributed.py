"""Processes that do not belong together say so, all and in time."""

import os
import re
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import DistributedTrainingConfig, FairseqConfig
from fairseq.distributed import utils as distributed_utils

from highrank_plugins.common.user_error import UserError
from highrank_plugins.hooks import distributed
from highrank_plugins.hooks.distributed import disagreement, refuse_lone_ranks
from tests.fairseq_cli import FORKS, _run
from tests.free_port import free_address
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION, in_group

TIMEOUT = 6
ONE_UPDATE = ["--max-update", 1]
MODEL = ["--arch", "transformer_softmax_tiny", *TRANSLATION, *NARROW, *OUR_LOSS]


def train_with(environment: dict[str, str], argv: list[str], log: str) -> None:
    os.environ.update(environment)
    _run("train", argv, log, os.devnull)


def start(data: Path, folder: Path, *flags: object, **environment: str):
    """Start a process that trains, with what a launcher gives it."""
    log = folder / f"{len(list(folder.glob('*.log')))}.log"
    log.touch()
    plugins = ["--user-dir", Path(distributed.__file__).parents[1]]
    words = ["fairseq-train", data, "--save-dir", folder / "save", *MODEL, *flags, *plugins]
    limit = {"HIGHRANK_RENDEZVOUS_TIMEOUT": str(TIMEOUT)} | environment
    args = (limit, [str(word) for word in words], str(log))
    child = FORKS.Process(target=train_with, args=args)
    child.start()
    return child, log


def refused(children, message: str, folder: Path) -> None:
    for child, log in children:
        child.join(120)
        assert child.exitcode == 2
        assert message in log.read_text(), log.read_text()[-2000:]
    assert not (folder / "save" / "checkpoint_last.pt").exists()


def test_a_missing_process_ends_the_others_in_time(mt_data, tmp_path):
    address, began = free_address(), time.monotonic()
    children = [
        start(mt_data, tmp_path, *in_group(address, rank, 3), *ONE_UPDATE) for rank in (0, 1)
    ]
    refused(children[:1], "2/3 clients joined.): fewer were started", tmp_path)
    refused(children[1:], "", tmp_path)
    assert time.monotonic() - began < TIMEOUT + 60


def test_another_world_size_is_reported_to_all_before_the_time_limit(mt_data, tmp_path):
    address, longer = free_address(), {"HIGHRANK_RENDEZVOUS_TIMEOUT": "300"}
    ranks = [[*in_group(address, rank, 2 + rank), *ONE_UPDATE] for rank in (0, 1)]
    children = [start(mt_data, tmp_path, *rank, **longer) for rank in ranks]
    refused(children, "processes disagree on --distributed-world-size: [2, 3]", tmp_path)


def test_a_process_that_would_train_alone_refuses_to(mt_data, tmp_path):
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}
    child = start(mt_data, tmp_path, *ONE_UPDATE, **torchrun)
    refused([child], "2 processes were started together, and each would train alone", tmp_path)


def test_four_processes_train_one_model_or_none(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    said = r"4 processes were started together.*OMPI_COMM_WORLD_SIZE=4\): start `highrank launch`"
    for world, spawns_at, alone in (
        (1, None, True),
        (2, None, True),
        (4, None, False),
        (4, "tcp://localhost:17", True),  # each process starts four of its own
        (16, "tcp://node1:17", False),  # each starts the processes of a node
    ):
        cfg = FairseqConfig()
        cfg.distributed_training = DistributedTrainingConfig(
            distributed_world_size=world, distributed_no_spawn=spawns_at is None,
            distributed_init_method=spawns_at,
        )  # fmt: skip
        with pytest.raises(UserError, match=said) if alone else nullcontext():
            refuse_lone_ranks(cfg)


def test_disagreements_between_processes_are_reported():
    def note(**changes):
        return {"host": "a", "world_size": 2, "device": None, "problem": None} | changes

    x, y = note(device="x"), note(device="y")
    for notes in [note(), note()], [x, y], [x, note(device="x", host="b")]:
        assert disagreement(notes) is None
    for notes, message in (
        ([x, y, x], "ranks 0 and 2 are both on GPU x"),
        ([note(), note(world_size=4)], r"disagree on --distributed-world-size: \[2, 4\]"),
        ([note(), note(problem="sees 1 GPUs")], "sees 1 GPUs"),
        ([x, note(host="b")], "rank 1 on b sees no GPU, but others do"),
    ):
        assert re.search(message, str(disagreement(notes)))


@pytest.mark.parametrize(("given", "chosen"), [("pytorch_ddp", "legacy_ddp"), ("slowmo", "slowmo")])
def test_processes_without_gpus_use_backends_that_run_on_cpus(monkeypatch, given, chosen):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    cfg = DistributedTrainingConfig(distributed_world_size=2, ddp_backend=given, tpu=False)
    distributed_utils.infer_init_method(cfg)
    assert (cfg.distributed_rank, cfg.distributed_world_size, cfg.device_id) == (1, 2, 0)
    assert (cfg.distributed_backend, cfg.ddp_backend) == ("gloo", chosen)
    assert cfg.distributed_no_spawn and cfg.distributed_init_method == "env://"
