"""Two processes train as one with the streams of both, also when they are interrupted."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.free_port import free_address
from tests.stream_corpus import CERTAIN, train_streams
from tests.trainings import last

WORDS = [*CERTAIN, "--asgd-at-epoch", 1]


def train_two(data, save_dir, *options):
    """Train on both ranks, each with half of the streams unless options say otherwise."""
    address = free_address()
    group = [
        *("--distributed-world-size", 2, "--device-id", 0, "--batch-size", 2),
        *("--distributed-init-method", address, "--distributed-no-spawn"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"),
    ]
    with ThreadPoolExecutor() as pool:
        ranks = [
            pool.submit(
                train_streams, data, save_dir, *WORDS, *group, "--distributed-rank", rank, *options
            )
            for rank in (0, 1)
        ]
    return [rank.result().output for rank in ranks]


@pytest.mark.parametrize("options", [(), ("--streams", 3)])  # 3: the second rank has one
def test_two_processes_equal_one(stream_data, tmp_path, options):
    alone = ("--batch-size", 3) if options else ()
    train_streams(stream_data, tmp_path / "one", *WORDS, *alone, "--max-epoch", 2)
    train_two(stream_data, tmp_path / "two", *options, "--max-update", 22)  # in epoch 2
    outputs = train_two(stream_data, tmp_path / "two", *options, "--max-epoch", 2)
    assert "Loaded checkpoint" in outputs[0] and "training on 2 devices" in outputs[0]
    one, two = (torch.load(last(tmp_path / name), weights_only=True) for name in ("one", "two"))
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, rtol=1e-5, atol=1e-6)
    for i, state in one["last_optimizer_state"]["state"].items():
        other = two["last_optimizer_state"]["state"][i]["ax"]
        torch.testing.assert_close(other, state["ax"], rtol=1e-5, atol=1e-6)
    assert two["extra_state"]["val_loss"] == pytest.approx(one["extra_state"]["val_loss"], abs=1e-5)
