"""Test hooks/early_stopping_state.py."""

import pytest
import torch
from fairseq.trainer import Trainer
from fairseq_cli import train as training

from tests.compat.conftest import run_training, translation_options

# hardly any epoch is progress
RISING = {
    "--lr": 0.5,
    "--max-update": 1000,
    "--lr-scheduler": "reduce_lr_on_plateau",
    "--lr-threshold": 0.9,
}


def train(data, save_dir, epochs: int, **more) -> dict:
    options = translation_options(**RISING, **{"--max-epoch": epochs}, **more)
    return run_training(data, save_dir, *options)


def same(a: dict, b: dict) -> bool:
    return all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])


def rate(state: dict) -> float:
    return state["last_optimizer_state"]["param_groups"][0]["lr"]


@pytest.mark.parametrize("patience", [0, 1])
def test_a_resumed_run_equals_an_uninterrupted_one(data, tmp_path, patience):
    more = {"--lr-shrink": 0.5, "--lr-patience": patience}
    unbroken = train(data, tmp_path / "a", 6, **more)
    for epochs in (2, 3, 6):
        resumed = train(data, tmp_path / "b", epochs, **more)
    assert rate(unbroken) < 0.5
    assert rate(resumed) == rate(unbroken)
    assert same(resumed, unbroken)


def test_stock_forgets_the_last_epoch(data, tmp_path, stock):
    stock(Trainer, "lr_step")
    stock(training, "validate")
    more = {"--lr-shrink": 0.5, "--lr-patience": 0}
    unbroken = train(data, tmp_path / "a", 6, **more)
    for epochs in (2, 3, 6):
        resumed = train(data, tmp_path / "b", epochs, **more)
    assert not same(resumed, unbroken)


def test_patience_keeps_counting_and_ends_the_run_for_good(data, tmp_path):
    unbroken = train(data, tmp_path / "a", 50, **{"--patience": 3})
    epochs = unbroken["extra_state"]["train_iterator"]["epoch"]
    assert 4 <= epochs < 50
    train(data, tmp_path / "b", epochs - 2, **{"--patience": 3})
    resumed = train(data, tmp_path / "b", 50, **{"--patience": 3})
    assert resumed["extra_state"]["train_iterator"]["epoch"] == epochs
    assert same(resumed, unbroken)
    again = train(data, tmp_path / "b", 50, **{"--patience": 3})
    assert same(again, unbroken)
