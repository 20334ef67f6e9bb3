"""`highrank bench train --model "… --head-monitor 1"` measures the monitor, too."""

import pytest

from highrank_plugins.benchmarks.case import ModelCase
from highrank_plugins.benchmarks.models import model_step
from highrank_plugins.models import head_monitor
from tests.trainings import NARROW


@pytest.mark.parametrize(("option", "measured"), [("--head-monitor 1", 2), ("", 0)])
def test_the_monitor_measures_at_every_step(option, measured, monkeypatch):
    seen = []
    monkeypatch.setattr(head_monitor, "take_snapshot", lambda head, *batch: seen.append(batch))
    case = ModelCase(classes=30, sentences=2, length=5, shape=" ".join(NARROW))
    step = model_step("train", f"transformer_mos {option}", case)
    step()
    step()
    assert [features.shape for features, *_ in seen] == [(2, 5, 32)] * measured
