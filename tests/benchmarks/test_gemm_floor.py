"""`gemm_floor` does the products that a head needs, no more and no fewer."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.benchmarks.implementations import loss_step

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
    products = sum(
        6 * rows * inner * columns for rows, inner, columns in case.layer().products(case.tokens)
    )
    assert flops("gemm_floor", case) == products
    assert flops("naive", case) == products
