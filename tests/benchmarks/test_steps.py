"""The steps that are measured: products of the floor, operations of a loss, and the monitor."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from highrank_plugins.benchmarks.case import BenchSettings, CaseError, LossCase, ModelCase
from highrank_plugins.benchmarks.child import Operation, operations, operations_table
from highrank_plugins.benchmarks.implementations import loss_step
from highrank_plugins.benchmarks.models import model_step
from highrank_plugins.benchmarks.run import Benchmark, profile_losses
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


SOFTMAX = LossCase(head="softmax", tokens=40, dim=16, classes=300)


def test_a_step_has_the_products_of_its_layer():
    found = {operation.name: operation for operation in operations(SOFTMAX, "fused", 2, 1)}
    # one chunk with three products
    assert found["matrix products"].calls == 3
    assert found["matrix products"].milliseconds > 0
    assert found["_softmax"].calls == 1
    assert [o.milliseconds for o in found.values()] == sorted(
        (o.milliseconds for o in found.values()), reverse=True
    )


def test_small_shares_are_summed_up():
    found = [Operation("matrix products", 90, 3), Operation("exp", 9.6, 2), Operation("a", 0.4, 5)]
    assert operations_table("case", found).splitlines()[2:] == [
        "| matrix products | 90.0 | 90.0% | 3 |",
        "| exp | 9.6 | 9.6% | 2 |",
        "| others | 0.4 | 0.4% | 5 |",
    ]


def test_an_implementation_that_cannot_run_a_case_is_refused():
    changes = {"reduction": "sum", "dtype": "float32", "device": "cpu"}
    with pytest.raises(CaseError, match="mos_ptb: --impl linear_cross_entropy: plain softmax only"):
        profile_losses(
            ["mos_ptb"], ["linear_cross_entropy"], changes, {},
            Benchmark("loss", BenchSettings(repeats=1), print),
        )  # fmt: skip


@pytest.mark.parametrize(("option", "measured"), [("--head-monitor 1", 2), ("", 0)])
def test_the_monitor_measures_at_every_step(option, measured, monkeypatch):
    seen = []
    monkeypatch.setattr(head_monitor, "take_snapshot", lambda head, *batch: seen.append(batch))
    case = ModelCase(classes=30, sentences=2, length=5, shape=" ".join(NARROW))
    step = model_step("train", f"transformer_mos {option}", case)
    step()
    step()
    assert [features.shape for features, *_ in seen] == [(2, 5, 32)] * measured
