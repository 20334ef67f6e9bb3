"""`highrank bench loss --profile`: the operations of a step."""

import pytest

from highrank_plugins.benchmarks.case import CaseError, LossCase
from highrank_plugins.benchmarks.child import Operation, operations, operations_table
from highrank_plugins.benchmarks.run import Benchmark, profile_losses

CASE = LossCase(head="softmax", tokens=40, dim=16, classes=300)


def test_a_step_has_the_products_of_its_layer():
    found = {operation.name: operation for operation in operations(CASE, "fused", 2, 1)}
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
            Benchmark("loss", 1, 1, None, None, print),
        )  # fmt: skip
