"""Test hooks/heartbeats.py; launch/test_stalled.py tests what a launcher does with beats."""

from itertools import groupby

import pytest

from highrank_plugins.hooks import heartbeats
from tests.compat.conftest import run_training, translation_options


@pytest.fixture
def beats(monkeypatch):
    """Record the beats of this process: phase and number of updates, None where not told."""
    seen = []
    monkeypatch.setattr(
        heartbeats, "beat", lambda phase=None, updates=None: seen.append((phase, updates))
    )
    return seen


def test_each_phase_of_two_epochs_shows_signs_of_life(data, tmp_path, beats):
    changed = {"--max-update": 0, "--max-epoch": 2}
    state = run_training(data, tmp_path, *translation_options(**changed))
    phases = [phase for phase, _ in groupby(phase for phase, _ in beats if phase is not None)]
    epoch = ["training", "validating", "training", "saving", "training"]
    between = "preparing an epoch"  # also of the epoch that is not trained any more
    assert phases == [*epoch, between, *epoch, between, "ending"]
    updates = [updates for _, updates in beats if updates is not None]
    last = state["last_optimizer_state"]["state"][0]["step"]
    assert updates == list(range(1, int(last) + 1))


def test_batches_and_sums_are_signs_within_a_phase(data, tmp_path, beats):
    run_training(data, tmp_path, *translation_options(**{"--max-update": 1}))
    validation = beats[beats.index(("validating", None)) :]
    within = validation[1 : validation.index(("training", None))]
    assert within
    assert set(within) == {(None, None)}
