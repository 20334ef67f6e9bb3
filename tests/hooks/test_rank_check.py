"""Test hooks/rank_check.py."""

import os
from pathlib import Path

import pytest
import torch
from fairseq.trainer import Trainer
from torch import nn
from torch.distributed import destroy_process_group, init_process_group

from highrank_plugins.hooks import distributed
from highrank_plugins.hooks.distributed import bit_sum, compare_ranks
from tests.fairseq_cli import FORKS, _run, attempt
from tests.free_port import free_address
from tests.trainings import NARROW, OUR_LOSS, TRANSLATION

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8]


def flip(tensor: torch.Tensor, element: int, bit: int = 0) -> None:
    """Change one bit of an element."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    with torch.no_grad():
        tensor.view(-1).view(bits)[element] ^= 1 << bit


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_bit_changes_the_sum(dtype):
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    before = bit_sum(tensor)
    for element in range(tensor.numel()):
        for bit in range(8 * tensor.element_size() - 1):  # the sign's mask is no int8
            flip(tensor, element, bit)
            assert bit_sum(tensor) != before
            flip(tensor, element, bit)
    assert bit_sum(tensor) == before


def test_order_changes_the_digest_and_chunks_do_not(monkeypatch):
    tensor = torch.arange(10.0)
    whole = bit_sum(tensor)
    assert bit_sum(tensor.flip(0)) != whole
    monkeypatch.setattr(distributed, "CHUNK", 3)
    assert bit_sum(tensor) == whole
    assert bit_sum(tensor.view(2, 5).t().contiguous().t()) == whole


def compare(rank: int, address: str, world: int, flipped: int | None, log: str) -> None:
    init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    if rank == flipped:
        flip(model[1].weight, 5)
    try:
        compare_ranks(model, None, 8)
        Path(log).write_text("equal")
    except RuntimeError as error:
        Path(log).write_text(str(error))
    destroy_process_group()


@pytest.mark.parametrize(
    ("world", "flipped", "message"),
    [
        (2, None, "equal"),
        (2, 1, "--check-ranks: after update 8 all ranks from 0 to 1 do not agree in 1.weight."),
        (3, 1, "--check-ranks: after update 8 rank 1 of 3 differs from the others in 1.weight."),
    ],
)
def test_one_changed_bit_is_reported_by_all(tmp_path, world, flipped, message):
    address, logs = free_address(), [tmp_path / str(rank) for rank in range(world)]
    children = [
        FORKS.Process(target=compare, args=(rank, address, world, flipped, str(log)))
        for rank, log in enumerate(logs)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert all(log.read_text().startswith(message) for log in logs)


def train_rank(rank: int, address: str, data: str, folder: str, flipped: int, log: str) -> None:
    """Train as one of two; rank 1 has a bit changed after some update."""
    stock = Trainer.train_step

    def train_step(trainer, samples, raise_oom=False):
        if rank == 1 and trainer.get_num_updates() == flipped:
            flip(trainer.get_model().decoder.layers[0].fc2.weight, 2, 20)
        return stock(trainer, samples, raise_oom)

    Trainer.train_step = train_step
    words = [
        *("fairseq-train", data, "--save-dir", folder, "--arch", "transformer_softmax_tiny"),
        *(*TRANSLATION, *NARROW, *OUR_LOSS, "--max-update", 6, "--check-ranks", 2),
        *("--distributed-world-size", 2, "--distributed-rank", rank, "--device-id", 0),
        *("--distributed-init-method", address, "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
        *("--user-dir", Path(distributed.__file__).parents[1]),
    ]
    _run("train", [str(word) for word in words], log, os.devnull)


@pytest.mark.parametrize("flipped", [3, 99])
def test_a_run_ends_at_the_check_after_a_flipped_bit(mt_data, tmp_path, flipped):
    address, logs = free_address(), [tmp_path / f"{rank}.log" for rank in (0, 1)]
    children = [
        FORKS.Process(
            target=train_rank,
            args=(rank, address, str(mt_data), str(tmp_path / "save"), flipped, str(log)),
        )
        for rank, log in enumerate(logs)
    ]
    for child in children:
        child.start()
    for child, log in zip(children, logs, strict=True):
        child.join(240)
        assert child.exitcode == (flipped < 6), log.read_text()[-2000:]
        message = "after update 4 all ranks from 0 to 1 do not agree in decoder.layers.0.fc2.weight"
        assert (message in log.read_text()) == (flipped < 6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--check-ranks", "-1"], "--check-ranks must be at least 0, got -1"),
        (
            ["--check-ranks", "2", "--ddp-backend", "slowmo", "--cpu", "--max-update", "1"],
            "--check-ranks: with --ddp-backend slowmo",
        ),
    ],
)
def test_incomparable_runs_are_refused(mt_data, tmp_path, words, message):
    where = ["--save-dir", tmp_path, "--arch", "transformer_softmax_tiny"]
    done = attempt("train", mt_data, *where, *TRANSLATION, *NARROW, *OUR_LOSS, *words)
    assert done.code != 0 and message in done.output
