"""Test hooks/trackio_fallback.py."""

import sys
from types import SimpleNamespace

import pytest
from fairseq.logging import progress_bar as bars

from highrank_plugins.hooks import trackio_fallback
from tests.compat.conftest import run_training, translation_options


@pytest.fixture
def calls(monkeypatch):
    """Put a tracker with trackio's functions in its place; return what is called."""
    found = []

    def init(*args, **kwargs):
        assert not any(name.startswith("_") for name in kwargs["config"])  # as trackio does
        found.append(("init", args, kwargs))

    stub = SimpleNamespace(
        init=init,
        log=lambda values, step: found.append(("log", values, step)),
        finish=lambda: found.append(("finish",)),
    )
    monkeypatch.setitem(sys.modules, "trackio", stub)
    monkeypatch.setattr(bars, "wandb", None)
    monkeypatch.setattr(trackio_fallback, "_said", set())
    return found


def test_a_resumed_run_stays_one_run_of_trackio(data, tmp_path, calls, caplog):
    options = {"--max-tokens": 400, "--max-update": 3, "--log-interval": 1}
    with caplog.at_level("INFO"):
        run_training(
            data, tmp_path / "run", *translation_options(**options), "--wandb-project", "layers"
        )
    (init,) = [call for call in calls if call[0] == "init"]
    assert init[1] == ("layers",) and init[2]["name"] == "run" and init[2]["resume"] == "allow"
    assert init[2]["config"]["optimization"]["max_update"] == 3
    logged = {(name, step) for kind, values, step in calls[1:] for name in values}
    assert ("train_inner/loss", 1) in logged and ("valid/loss", 3) in logged
    said = [text for text in caplog.messages if "trackio" in text]
    assert len(said) == 1 and "wandb is not installed; tracking with trackio" in said[0]


def test_without_a_tracker_one_warning_names_both_trackers(monkeypatch, calls, caplog):
    monkeypatch.setitem(sys.modules, "trackio", None)  # as if it were not installed
    for _ in range(2):
        bar = bars.progress_bar([], log_format="none", wandb_project="layers")
        assert type(bar) is bars.NoopProgressBar
    assert len(caplog.messages) == 1
    assert "neither wandb nor trackio is installed" in caplog.text and "`track`" in caplog.text


def test_wandb_takes_precedence(monkeypatch, calls):
    wandb = SimpleNamespace(init=lambda **kwargs: calls.append(("wandb", kwargs["project"])))
    monkeypatch.setattr(bars, "wandb", wandb)
    bar = bars.progress_bar([], log_format="none", wandb_project="layers")
    assert type(bar) is bars.WandBProgressBarWrapper and calls == [("wandb", "layers")]
