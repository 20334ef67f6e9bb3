"""Test hooks/time_left.py."""

import logging
from types import SimpleNamespace

import pytest

from highrank_plugins.hooks import time_left


class Trainer:
    updates = seconds = 0

    def get_num_updates(self):
        return self.updates

    def cumulative_training_time(self):
        return self.seconds


class Batches:
    epoch = 1

    def __init__(self, done):
        self.iterations_in_epoch = done

    def __len__(self):
        return 40


@pytest.mark.parametrize(
    ("bounds", "left"),
    [
        ((None, None), None),
        ((30, None), 60.0),
        ((30, 20), 40.0),
        ((None, 0), 0.0),
        ((-3, None), 0.0),
    ],
)
def test_seconds_left_follow_from_the_bounds(bounds, left):
    assert time_left.seconds_left(20.0, 10, *bounds) == left


def test_the_time_left_is_unknown_before_an_update():
    assert time_left.seconds_left(20.0, 0, 30) is None


@pytest.mark.parametrize(
    ("options", "done", "said"),
    [
        ({"max_epoch": 4}, 0, ["epoch 1 is done; about 0:02:30 left"]),
        ({"max_epoch": 4}, 30, ["epoch 1 is done; about 0:02:30 left"]),  # resumed in the epoch
        ({"max_epoch": 4, "max_update": 16}, 0, ["epoch 1 is done; about 0:00:30 left"]),
        ({"max_update": 16}, 30, ["epoch 1 is done; about 0:00:30 left"]),
        ({"max_epoch": 1}, 0, []),
        ({}, 0, []),
    ],
)
def test_the_time_left_is_logged_after_an_epoch(caplog, options, done, said):
    """Ten updates of four batches take 50 s, also if `done` batches are of an earlier sitting."""
    trainer = Trainer()
    trainer.updates, trainer.seconds = done / 4, done / 4 * 5

    def stock(*args):
        trainer.updates += (40 - done) / 4
        trainer.seconds = 50
        return [1.0], False

    bounds = {"max_epoch": 0, "max_update": 0} | options
    cfg = SimpleNamespace(optimization=SimpleNamespace(**bounds))
    # what `replaces` calls with the stock function
    (train,) = [
        cell.cell_contents
        for cell in time_left.train.__closure__
        if getattr(cell.cell_contents, "__module__", "") == time_left.__name__
    ]
    with caplog.at_level(logging.INFO, time_left.__name__):
        assert train(stock, cfg, trainer, None, Batches(done)) == ([1.0], False)
    assert caplog.messages == said
