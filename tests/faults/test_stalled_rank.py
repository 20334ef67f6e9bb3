"""A rank of a real training run that is stopped is named, and the others end in time."""

import signal

import pytest

from tests.faults.observed_training import (
    ENDING_SECONDS,
    STALL_SECONDS,
    ObservedTraining,
    binarise,
    disturb,
    write_text,
)

START_SECONDS = 300  # for a busy machine; an idle one needs 20


@pytest.mark.long
def test_a_stalled_rank_is_survived(tmp_path):
    data = binarise(write_text(tmp_path), tmp_path)
    training = ObservedTraining(data, tmp_path / "save", True, tmp_path / "log")
    try:
        training.wait_for_updates(3, START_SECONDS)
        ending = disturb(training, signal.SIGSTOP, rank=1)
    finally:
        training.end()
    assert ending.code not in (0, 75)
    assert ending.seconds <= STALL_SECONDS + ENDING_SECONDS
    assert ending.named
    assert ending.left_over == 0


def test_a_run_that_cannot_start_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    training = ObservedTraining(tmp_path, tmp_path / "save", True, tmp_path / "log")
    with pytest.raises(RuntimeError, match="the training run ended too soon"):
        training.wait_for_updates(1, START_SECONDS)
