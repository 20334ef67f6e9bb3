"""The steps that are measured: products of the floor, and the monitor."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from highrank_plugins.benchmarks.case import LossCase, ModelCase
from highrank_plugins.benchmarks.implementations import loss_step
from highrank_plugins.benchmarks.models import model_step
from highrank_plugins.models import head_monitor
from tests.trainings import NARROW

SIZES = {"tokens": 24, "dim": 16, "classes": 50}
CASES = [
    LossCase("softmax", **SIZES),
    LossCase("moc", components=3, **SIZES),
    LossCase("mos", components=3, **SIZES),
    LossCase("mixtape", components=4, frequent=20, gate_dim=8, **SIZES),
    LossCase("mixtape", components=2, frequent=50, gate_dim=8, **SIZES),
]


def flops(implementation, case):
    step = loss_step(implementation, case)
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_floor_counts_the_operations_of_the_naive_code(case):
    """Count every product once forward and twice backward, as autograd does."""
    products = sum(6 * rows * inner * columns for rows, inner, columns in case.products())
    assert flops("gemm_floor", case) == products
    assert flops("naive", case) == products


@pytest.mark.parametrize(("option", "measured"), [("--head-monitor 1", 2), ("", 0)])
def test_the_monitor_measures_at_every_step(option, measured, monkeypatch):
    seen = []
    monkeypatch.setattr(head_monitor, "take_snapshot", lambda head, *batch: seen.append(batch))
    case = ModelCase(classes=30, sentences=2, length=5, shape=" ".join(NARROW))
    step = model_step("train", f"transformer_mos {option}", case)
    step()
    step()
    assert [features.shape for features, *_ in seen] == [(2, 5, 32)] * measured
