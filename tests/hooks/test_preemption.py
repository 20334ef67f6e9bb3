"""hooks/preemption.py; whole trainings that are told to end are in tests/training/launch."""

from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils

from highrank_plugins.common import stop_request
from highrank_plugins.hooks.preemption import leave_if_asked

CFG = SimpleNamespace(checkpoint="where to save")


@pytest.fixture
def saved(monkeypatch):
    """What was saved."""
    seen = []
    monkeypatch.setattr(checkpoint_utils, "save_checkpoint", lambda *given: seen.append(given))
    return seen


@pytest.fixture
def trainer():
    return SimpleNamespace(data_parallel_world_size=1, get_num_updates=lambda: 7)


def request(monkeypatch, listening=True, asked=True):
    monkeypatch.setattr(stop_request, "listening", lambda: listening)
    monkeypatch.setattr(stop_request, "asked", lambda: asked)
    monkeypatch.delenv(stop_request.DIRECTORY, raising=False)


def test_who_is_asked_saves_and_ends_to_be_started_again(monkeypatch, saved, trainer):
    request(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        leave_if_asked(CFG, trainer, "epoch", is_saved=False)
    assert ended.value.code == stop_request.REQUEUE
    assert saved == [("where to save", trainer, "epoch", None)]


def test_a_checkpoint_of_this_update_is_not_written_twice(monkeypatch, saved, trainer):
    request(monkeypatch)
    with pytest.raises(SystemExit):
        leave_if_asked(CFG, trainer, "epoch", is_saved=True)
    assert saved == []


@pytest.mark.parametrize(("listening", "asked"), [(True, False), (False, True)])
def test_nobody_else_ends(monkeypatch, saved, trainer, listening, asked):
    request(monkeypatch, listening, asked)
    leave_if_asked(CFG, trainer, "epoch", is_saved=False)
    assert saved == []
