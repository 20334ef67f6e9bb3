"""The code that losses are compared with computes the same loss, also of a new layer; the floor."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from highrank_plugins.benchmarks import implementations
from highrank_plugins.benchmarks.case import CaseError, LossCase
from highrank_plugins.benchmarks.implementations import available, loss_function, loss_step
from tests.heads.toys import toys  # noqa: F401  (pytest finds the fixture by its name)

pytestmark = pytest.mark.usefixtures("toys")
SIZES = {"tokens": 12, "dim": 8, "classes": 30, "dtype": "float64"}
SMOOTHED = {**SIZES, "label_smoothing": 0.1}
MOS_GSS = LossCase("mos", components=3, pointwise="gss", **SMOOTHED)
MIXTAPE = LossCase("mixtape", components=4, frequent=10, gate_dim=4, **SMOOTHED)
CASES = [
    LossCase("softmax", **SMOOTHED),
    LossCase("moc", components=3, pointwise="sigsoftmax", **SIZES),
    LossCase("mos", components=3, **SIZES),
    LossCase("mos", components=3, pointwise="plif", **SIZES),
    MOS_GSS,
    MIXTAPE,
]
# a structure and a function that the package does not have are measured without further code
TOY = LossCase("residual", tokens=24, dim=16, classes=50, pointwise="bend", label_smoothing=0.1)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    """Torch refuses to compile one function for more than eight cases in a process."""
    torch.compiler.reset()


def assert_is_the_loss(implementation, case):
    head = case.build_head().double()
    features = torch.randn(case.tokens, case.dim, dtype=torch.float64, requires_grad=True)
    target = torch.arange(case.tokens)
    inputs = [features, *head.parameters()]
    want = head.nll(
        features, target, label_smoothing=case.label_smoothing, reduction="sum", impl="reference"
    ).loss
    got = loss_function(implementation, case)(head, features, target)
    # the naive code of MoS adds 1e-8 to probabilities
    close = {"rtol": 1e-5, "atol": 1e-6} if "gathered" not in implementation else {}
    torch.testing.assert_close(got, want, **close)
    for ours, theirs in zip(
        torch.autograd.grad(got, inputs), torch.autograd.grad(want, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, **close)


GATES = [replace(MIXTAPE, components=8), replace(MIXTAPE, components=3, gates="softmax")]
EAGER = [(name, case) for name in ("naive", "gathered") for case in [*CASES, *GATES, TOY]]
CAPTURED = [("compiled", MOS_GSS), ("gathered_compiled", MIXTAPE)]


@pytest.mark.parametrize(("implementation", "case"), EAGER + CAPTURED, ids=str)
def test_eager_and_captured_code_computes_the_loss(implementation, case, monkeypatch):
    """Leave out inductor, which takes long."""
    monkeypatch.setattr(implementations, "COMPILER", "aot_eager")
    assert_is_the_loss(implementation, case)


@pytest.mark.long
@pytest.mark.cpp
@pytest.mark.parametrize("implementation", ["compiled", "gathered_compiled"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_code_computes_the_loss(case, implementation):
    assert_is_the_loss(implementation, case)


def test_a_second_step_compiles_nothing(monkeypatch):
    """The first step of a process is the warm-up of the second, whose memory is measured."""
    compiled = []

    def compiler(graph, inputs):
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(implementations, "COMPILER", compiler)
    case = LossCase("mos", components=3, **SIZES)
    implementations._compiled.cache_clear()
    loss_step("naive", LossCase("softmax", **SMOOTHED))()  # another layer's code does not matter
    for _ in range(2):
        loss_step("compiled", case)()
    assert len(compiled) == 1


@pytest.mark.parametrize("case", [*CASES, replace(MIXTAPE, components=2, frequent=30)], ids=str)
def test_the_floor_counts_the_operations_of_the_naive_code(case):
    """Count every product once forward and twice backward, as autograd does."""
    products = sum(6 * rows * inner * columns for rows, inner, columns in case.products())
    for implementation in ("gemm_floor", "naive"):
        step = loss_step(implementation, case)
        with FlopCounterMode(display=False) as counter:
            step()
        assert counter.get_total_flops() == products


def test_a_new_head_describes_itself():
    assert TOY.products() == [(24, 16, 16), (24, 16, 50)]
    assert available("liger", TOY) == "plain softmax only"
    for impl in ("gemm_floor", "naive", "reference", "chunked", "auto"):
        assert available(impl, TOY) is None
        loss_step(impl, TOY)()
    for impl in ("fused", "cpp", "triton"):
        assert available(impl, TOY) == "residual has no fused loss"
        assert available(impl, replace(TOY, head="softmax")) is None
    with pytest.raises(CaseError, match="did you mean 'residual'"):
        replace(TOY, head="resdual").layer()
